"""`amk matrix`: every model on every target, planned, verified and compiled; resumable, and no GPU is needed."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from amk.bench.matrix import Cell, Matrix, examine, render
from amk.bench.provenance import software
from amk.commands.planning import positive
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where
from amk.schedule_ir.model import load_model, shipped_models
from amk.schedule_ir.target import load_target, targets
from amk.schedule_ir.weight_format import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", required=True, metavar="FILE", help="add every cell to this JSON file")
    parser.add_argument("--models", type=names, metavar="NAME,...", help="default: all that are shipped")
    parser.add_argument("--gpus", type=names, metavar="NAME,...", help="default: all known targets")
    parser.add_argument("--dtype", choices=FORMATS, default="bf16", help="format of the weights (default: bf16)")
    parser.add_argument("--resume", action="store_true", help="keep cells recorded for the same schedule and code")
    parser.add_argument("--time-limit", type=positive, metavar="SECONDS", help="begin no cell after this time")
    parser.add_argument("--render", metavar="FILE.md", help="write the record as a Markdown table")


def names(text: str) -> tuple[str, ...]:
    return tuple(part.lower() for part in text.split(","))


def run(arguments: argparse.Namespace) -> int:
    """Exit 0 if every cell runs or does not fit, 1 if one is refused."""
    began = time.monotonic()
    matrix = Matrix.open(Path(arguments.record))
    made = software("amk " + shlex.join(sys.argv[1:]))
    refused = 0
    models = [load_model(name).name for name in arguments.models or shipped_models()]
    gpus = [load_target(name).name for name in arguments.gpus or (target.name for target in targets())]
    for model in models:
        for gpu in gpus:
            if arguments.time_limit and time.monotonic() - began > arguments.time_limit:
                break
            known = matrix.find(model, gpu, arguments.dtype) if arguments.resume else None
            cell = examine(model, gpu, arguments.dtype, known)
            if cell is not known:
                matrix.add(cell, made)
            refused += cell.outcome == "refused"
            print(line(cell), flush=True)
    if arguments.render is not None:
        _write(Path(arguments.render), render(matrix))
    return Exit.UNSAFE if refused else Exit.SAFE


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
