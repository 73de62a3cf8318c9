"""`amk bench`: time and correctness of a decode step beside torch, in one process, on this machine's GPU."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from amk.commands.output import add_format, print_json, print_table
from amk.commands.planning import add_plan_arguments, planned, positive
from amk.engine.admission import admit
from amk.lowering.launch import Device
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.model import load_model
from amk.schedule_ir.schedule import Schedule

BASELINES = ("cublas-graph", "compile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan_arguments(parser, required=True)
    parser.add_argument(
        "--batch", type=batches, default=(1,), metavar="N,N,...", help="sequences decoded together (default: 1)"
    )
    parser.add_argument("--plan", choices=(*PRESETS, "both"), default="fast", help="which plan (default: fast)")
    parser.add_argument("--positions", type=positions, default=(16, 128), metavar="P,P,...", help="default: 16,128")
    parser.add_argument(
        "--baselines", type=baselines, default=("cublas-graph",), metavar="NAME,...", help=f"of {', '.join(BASELINES)}"
    )
    parser.add_argument("--steps", type=positive, default=50, help="measured launches (default: 50)")
    parser.add_argument("--tokens", type=positive, default=4, help="tokens per launch (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights and cache (default: 0)")
    parser.add_argument("--record", metavar="FILE", help="add every row to this JSON file")
    parser.add_argument("--resume", action="store_true", help="do not measure rows that --record already holds")
    parser.add_argument("--time-limit", type=positive, metavar="SECONDS", help="begin no row after this time")
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


def baselines(text: str) -> tuple[str, ...]:
    """Names separated by commas; `none` for no baseline."""
    names = () if text == "none" else tuple(text.split(","))
    for name in names:
        if name not in BASELINES:
            raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(BASELINES)}, none")
    return names


def run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    if arguments.resume and arguments.record is None:
        raise AmkError(Diagnostic("AMK005", "--resume needs --record FILE, which holds the rows to keep"))
    schedules = _schedules(arguments)
    device = usable_gpu()
    for schedule in schedules:
        admit(schedule)
    record = importlib.import_module("amk.bench.record")
    row = importlib.import_module("amk.bench.row")
    provenance = importlib.import_module("amk.bench.hardware").provenance
    suite = importlib.import_module("amk.bench.suite").Suite(
        schedules, arguments.positions, arguments.baselines, arguments.steps, arguments.tokens, arguments.seed,
        began + (arguments.time_limit or float("inf")),
    )  # fmt: skip
    kept = record.Record.open(Path(arguments.record)) if arguments.record else None
    command = "amk " + shlex.join(sys.argv[1:])
    rows: list[Any] = []
    for found, measured in suite.rows(kept.find if kept and arguments.resume else lambda key: None):
        rows.append(found)
        if kept and measured:
            kept.add(found, provenance(command, device))
        name = f"{found.key.model} {found.key.plan}, batch {found.key.batch}, at {found.key.pos}"
        print(f"{name}: {found.times.ms:.4f} ms", file=sys.stderr)
    if arguments.format == "json":
        print_json({"rows": [each.record() for each in rows], "run": provenance(command, device)})
    else:
        print_table(row.header(arguments.baselines), [row.cells(each) for each in rows])
    missing = len(schedules) * len(arguments.positions) - len(rows)
    if missing:
        print(f"{missing} rows were not begun in time; the same command with --resume goes on", file=sys.stderr)
    return Exit.SAFE if all(each.correct for each in rows) else Exit.UNSAFE


def _schedules(arguments: argparse.Namespace) -> tuple[Schedule, ...]:
    """One schedule per plan and batch, with room for the furthest position and the tokens after it."""
    model, last = load_model(arguments.model), max(arguments.positions)
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
