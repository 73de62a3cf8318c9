"""`amk matrix`: every model on every target, planned, verified and compiled; resumable, and no GPU is needed."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import as_completed
from pathlib import Path

from amk.bench.table.matrix import Cell, Matrix, examine, render
from amk.bench.tools.provenance import software
from amk.commands.format_arguments import positive
from amk.models.model import load_model, shipped_models
from amk.processes import process_pool
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where
from amk.targets.target import load_target, targets
from amk.weights.weight_format import FORMATS, FormatName


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", required=True, metavar="FILE", help="add every cell to this JSON file")
    parser.add_argument("--models", type=names, metavar="NAME,...", help="default: all that are shipped")
    parser.add_argument("--gpus", type=names, metavar="NAME,...", help="default: all known targets")
    parser.add_argument("--dtype", choices=FORMATS, default="bf16", help="format of the weights (default: bf16)")
    parser.add_argument("--resume", action="store_true", help="keep cells recorded for the same schedule and code")
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--time-limit", type=positive, metavar="SECONDS", help="begin no cell after this time")
    parser.add_argument("--render", metavar="FILE.md", help="write the record as a Markdown table")


def names(text: str) -> tuple[str, ...]:
    return tuple(part.lower() for part in text.split(","))


def run(arguments: argparse.Namespace) -> int:
    """Exit 0 if every cell runs or does not fit, 1 if one is refused."""
    began = time.monotonic()
    matrix = Matrix.open(Path(arguments.record))
    provenance = software("amk " + shlex.join(sys.argv[1:]))
    refused = 0
    models = [load_model(name).name for name in arguments.models or shipped_models()]
    gpus = [load_target(name).name for name in arguments.gpus or (target.name for target in targets())]
    wanted = [
        (model, gpu, arguments.dtype, matrix.find(model, gpu, arguments.dtype) if arguments.resume else None)
        for model in models
        for gpu in gpus
    ]
    deadline = began + arguments.time_limit if arguments.time_limit else float("inf")
    for known, cell in _examined(wanted, arguments.jobs, deadline):
        if cell != known:
            matrix.add(cell, provenance)
        refused += cell.outcome == "refused"
        print(line(cell), flush=True)
    if arguments.render is not None:
        _write(Path(arguments.render), render(matrix))
    return Exit.UNSAFE if refused else Exit.SAFE


Request = tuple[str, str, FormatName, Cell | None]


def _examined(cells: list[Request], jobs: int, deadline: float) -> Iterator[tuple[Cell | None, Cell]]:
    """What was known of each and what is now, as they come; none is begun after `deadline` (time.monotonic())."""
    if jobs == 1:
        for one in cells:
            if time.monotonic() > deadline:
                return
            yield one[-1], examine(*one)
        return
    with process_pool(jobs) as pool:
        futures = {pool.submit(examine, *one): one for one in cells}
        for future in as_completed(futures):
            if future.cancelled():
                continue
            yield futures[future][-1], future.result()
            if time.monotonic() > deadline:
                pool.shutdown(wait=False, cancel_futures=True)


def line(cell: Cell) -> str:
    """One cell for people."""
    place = f"{cell.model:<14} {cell.gpu:<10} {cell.weights:<5} {cell.outcome:<13}"
    if cell.outcome != "runs":
        return f"{place}{cell.reason}"
    return (
        f"{place}{cell.verdict}, context {cell.context:,}, {cell.registers} of {cell.register_budget} registers, "
        f"{cell.spill_bytes} bytes spilled, {cell.shared_bytes:,} of {cell.shared_limit:,} bytes of shared memory, "
        f"plan {cell.plan_s} s, verify {cell.verify_s} s, compile {cell.compile_s} s"
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AmkError(Diagnostic("AMK001", f"cannot write: {error}", where=Where(file=str(path)))) from error
