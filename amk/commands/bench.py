"""`amk bench`: time and correctness of a decode step beside torch, in one process, on this machine's GPU."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from amk.bench.table.measurement import Measurement, measurement
from amk.commands.bench_ablate import ablated, add_ablate, recorded
from amk.commands.bench_output import draw, drawn_only, print_rows
from amk.commands.bench_share import add_share, check_share, share
from amk.commands.bench_table import judged_only, measurements_of, print_table_of, separate_runs
from amk.commands.format_arguments import natural, positive
from amk.commands.output import add_format
from amk.commands.planning import add_plan_arguments, planned
from amk.engine.admission.admission import admit
from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.schedule import Schedule

MOST_CASES = 200
BASELINES = ("cublas-graph", "compile", "int8", "fp8", "int4", "pdl-graph")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table", metavar="NAME", help="the cases of a table and what they must reach: h100, h200, or a file"
    )
    parser.add_argument(
        "--cases",
        type=numbers,
        metavar="N,N-N,...",
        help="of the table, by the numbers it prints: a share for each GPU",
    )
    add_plan_arguments(parser, required=False)
    parser.add_argument(
        "--batch", type=batches, default=(1,), metavar="N,N,...", help="sequences decoded together (default: 1)"
    )
    parser.add_argument("--plan", choices=(*PRESETS, "both"), default="fast", help="which plan (default: fast)")
    parser.add_argument("--positions", type=positions, default=(16, 128), metavar="P,P,...", help="default: 16,128")
    parser.add_argument(
        "--baselines", type=baselines, metavar="NAME,...",
        help=f"of {', '.join(BASELINES)}, or none (default: cublas-graph; with --table: those of each case)",
    )  # fmt: skip
    parser.add_argument("--steps", type=positive, default=50, help="measured launches (default: 50)")
    parser.add_argument("--tokens", type=positive, default=4, help="tokens per launch (default: 4)")
    parser.add_argument("--seed", type=natural, default=0, help="of the random weights and cache (default: 0)")
    parser.add_argument("--record", metavar="FILE", help="add every row to this JSON file")
    add_share(parser)
    parser.add_argument("--resume", action="store_true", help="do not measure rows that --record already holds")
    parser.add_argument("--time-limit", type=positive, metavar="SECONDS", help="begin no row that would end after this")
    parser.add_argument("--runs", type=positive, default=1, help="so many separate processes, one after the other")
    parser.add_argument(
        "--baselines-once", action="store_true", help="with --runs: only the first of them has baselines"
    )
    parser.add_argument("--run", type=positive, default=1, help="number under which rows are recorded (default: 1)")
    add_ablate(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw ms against position and batch into this .svg or .html")
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="FILE",
        help="with --plot: draw these records, measure nothing; with --table: judge them, --record FILE holds all; "
        "with --ablate: print them",
    )
    add_format(parser)


def positions(text: str) -> tuple[int, ...]:
    """`16,128` -> (16, 128)."""
    values = tuple(int(part) for part in text.split(","))
    if any(value < 0 for value in values):
        raise argparse.ArgumentTypeError("positions start at 0")
    return values


def batches(text: str) -> tuple[int, ...]:
    """`1,4,8` -> (1, 4, 8)."""
    return tuple(positive(part) for part in text.split(","))


def numbers(text: str) -> tuple[int, ...]:
    """`1,5,7-9` -> (1, 5, 7, 8, 9)."""
    values: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        values += range(positive(first), min(positive(last or first), MOST_CASES) + 1)
    return tuple(dict.fromkeys(values))


def baselines(text: str) -> tuple[str, ...]:
    """Names separated by commas; `none` for no baseline."""
    names = () if text == "none" else tuple(text.split(","))
    for name in names:
        if name not in BASELINES:
            raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(BASELINES)}, none")
    return names


def run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    _check(arguments)
    if arguments.rows and arguments.ablate:
        return recorded(arguments)
    if arguments.rows:
        return judged_only(arguments) if arguments.table else drawn_only(arguments)
    if arguments.runs > 1:
        return separate_runs(arguments, began)
    cases = measurements_of(arguments) if arguments.table else _positions(arguments)
    if arguments.share:
        check_share(cases)
    device = usable_gpu()
    if arguments.ablate:
        hardware = importlib.import_module("amk.bench.tools.hardware")
        return ablated(arguments, cases, lambda: hardware.provenance(_command(), device), began)
    record = importlib.import_module("amk.bench.table.record")
    kept = record.Record.open(Path(arguments.record)) if arguments.record else None
    rows = _measured(arguments, cases, device, kept, began)
    provenance = importlib.import_module("amk.bench.tools.hardware").provenance(_command(), device)
    if arguments.share:
        share(arguments, cases, rows, provenance)
    if arguments.table:
        print_table_of(arguments, kept.rows() if kept else rows, provenance)
    else:
        print_rows(arguments, rows, provenance)
    if arguments.plot:
        draw(Path(arguments.plot), kept.rows() if kept else rows)
    if missing := len(cases) - len(rows):
        print(f"{missing} rows were not begun in time; the same command with --resume goes on", file=sys.stderr)
    return Exit.SAFE if all(each.correct for each in rows) else Exit.UNSAFE


def _check(arguments: argparse.Namespace) -> None:
    """AMK005 for arguments that do not go together."""
    named = arguments.model is not None and arguments.gpu is not None
    wrong = {
        "--resume needs --record FILE, which holds the rows to keep": arguments.resume and arguments.record is None,
        "--runs needs --record FILE, where the runs meet": arguments.runs > 1 and arguments.record is None,
        "--runs is for --table": arguments.runs > 1 and not arguments.table,
        "--rows needs --plot FILE, --table NAME or --ablate": arguments.rows
        and not (arguments.plot or arguments.table or arguments.ablate),
        "--ablate times one process and draws nothing: no --runs, no --plot": arguments.ablate
        and (arguments.runs > 1 or arguments.plot),
        "--cases is for --table": arguments.cases and not arguments.table,
        "--share is of what one process measures: no --runs, no --ablate, no --rows, no --resume": arguments.share
        and (arguments.runs > 1 or arguments.ablate or arguments.rows or arguments.resume),
        "--sign is for --share": arguments.sign and not arguments.share,
        "--baselines-once is for --runs": arguments.baselines_once and arguments.runs == 1,
        "give --table, or both --model and --gpu": not (named or arguments.table or arguments.rows),
        "--table names models and GPU itself": arguments.table and (arguments.model or arguments.gpu),
    }
    for message, holds in wrong.items():
        if holds:
            raise AmkError(Diagnostic("AMK005", message))


def _command() -> str:
    return "amk " + shlex.join(sys.argv[1:])


def _measured(
    arguments: argparse.Namespace, cases: Sequence[Measurement], device: Device, record_file: Any, began: float
) -> list[Any]:
    """The rows, recorded one by one as they are there."""
    provenance = importlib.import_module("amk.bench.tools.hardware").provenance
    deadline = began + (arguments.time_limit or float("inf"))
    suite = importlib.import_module("amk.bench.table.suite").Suite(tuple(cases), arguments.seed, deadline)
    rows: list[Any] = []
    for row, measured in suite.rows(record_file.find if record_file and arguments.resume else lambda key: None):
        rows.append(row)
        if record_file and measured:
            record_file.add(row, provenance(_command(), device))
        key = row.key
        name = f"{key.model} {key.dtype} {key.plan}, batch {key.batch}, at {key.pos}"
        print(f"{name}: {row.times.ms:.4f} ms", file=sys.stderr, flush=True)
    return rows


def _positions(arguments: argparse.Namespace) -> list[Measurement]:
    """Every position of every plan; plans that are not SAFE are refused here."""
    names = ("cublas-graph",) if arguments.baselines is None else arguments.baselines
    cases = []
    for schedule in _schedules(arguments):
        admit(schedule)
        cases += [
            measurement(
                schedule, pos, tokens=arguments.tokens, steps=arguments.steps, baselines=names, run=arguments.run
            )
            for pos in arguments.positions
        ]
    return cases


def _schedules(arguments: argparse.Namespace) -> tuple[Schedule, ...]:
    """One schedule per plan and batch, with room for the furthest position and the tokens after it."""
    model, last = load_model(arguments.model), max(arguments.positions)
    if model.family != "llama":
        message = f"{model.name} is of the family {model.family}, for which there is no baseline in torch"
        raise AmkError(Diagnostic("AMK012", message, help="amk plan, verify, compile and emulate take it"))
    if last >= model.max_context:
        message = f"{model.name} has positions 0 to {model.max_context - 1}, {last} was asked for"
        raise AmkError(Diagnostic("AMK011", message))
    context = arguments.max_context or min(last + arguments.tokens, model.max_context)
    if last >= context:
        raise AmkError(Diagnostic("AMK011", f"--max-context {context} has no position {last}"))
    presets = ("naive", "fast") if arguments.plan == "both" else (arguments.plan,)
    settings = [replace(PRESETS[preset], batch=batch) for preset in presets for batch in arguments.batch]
    return tuple(planned(arguments, each, context) for each in settings)


def usable_gpu() -> Device:
    """The GPU, or AMK602 (exit 5) saying what is missing."""
    device = Device.open()
    if importlib.util.find_spec("torch") is None:
        message = "the baselines and the reference of `amk bench` need torch, which is not installed"
        raise AmkError(Diagnostic("AMK602", message, help="pip install torch"), Exit.NO_GPU)
    if not importlib.import_module("torch").cuda.is_available():
        raise AmkError(Diagnostic("AMK602", "the installed torch cannot use this GPU"), Exit.NO_GPU)
    return device
