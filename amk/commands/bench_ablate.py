"""`amk bench --ablate`: what each part of today's kernels costs, row by row, resumable."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from amk.bench.table.ablation import (
    HEADER,
    PAIRS,
    PARTS,
    PARTS_OF_PAIRS,
    WAITS,
    Ablation,
    cells,
    pairs,
    summary,
    variants,
)
from amk.bench.table.measurement import Measurement
from amk.bench.table.record import ABLATIONS, Record
from amk.commands.output import print_json, print_table
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where

Provenance = Callable[[], dict[str, object]]


def parts(text: str) -> tuple[str, ...]:
    """`staging,sums`, in the order of PARTS; `all`. The waits are always left out too, beside the others."""
    names = PARTS_OF_PAIRS if text == "all" else tuple(text.split(","))
    for name in names:
        if name not in PARTS_OF_PAIRS:
            raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(PARTS_OF_PAIRS)}, all")
    return tuple(name for name in PARTS if name in names)


def add_ablate(parser: argparse.ArgumentParser) -> None:
    names = "; ".join(f"{name}: {what}" for name, what in PARTS.items() if name != WAITS)
    parser.add_argument(
        "--ablate", type=parts, metavar="PART,...",
        help=f"time the kernel without each part, each pair, and these without waits too; `all`, or of {names}",
    )  # fmt: skip


def ablated(arguments: argparse.Namespace, cases: Sequence[Measurement], provenance: Provenance, began: float) -> int:
    """Measure what the record does not have, then print every row. A refused kernel costs its row alone, and exit 1."""
    kept = Record.open(Path(arguments.record), ABLATIONS) if arguments.record else None
    deadline, longest, rows = began + (arguments.time_limit or float("inf")), 0.0, []
    refused = False
    for case in (replace(each, key=replace(each.key, baselines=())) for each in cases):
        known = [row for row in kept.ablations() if row.key == case.key] if kept and arguments.resume else []
        if known:
            rows += known
            continue
        start = time.monotonic()
        if start + longest > deadline:
            print("the other rows were not begun in time; --resume goes on", file=sys.stderr)
            break
        try:
            row = _measured(arguments, case)
        except AmkError as error:
            if error.exit_code not in (Exit.UNSAFE, Exit.INPUT):
                raise
            print(f"{case.key.model} {case.key.dtype}, batch {case.key.batch}, is left out: {error}", file=sys.stderr)
            refused = True
            continue
        longest = max(longest, time.monotonic() - start)
        if kept:
            kept.add(row, provenance())
        rows.append(row)
        print(f"{_name(row)}: {summary(row)}", file=sys.stderr, flush=True)
    return max(_printed(arguments, rows, provenance()), Exit.UNSAFE if refused else Exit.SAFE)


def _measured(arguments: argparse.Namespace, case: Measurement) -> Ablation:
    # Imported here: they need torch and a GPU.
    measuring = importlib.import_module("amk.bench.table.ablated")
    admit = importlib.import_module("amk.bench.tools.ahead").kernel_of
    subjects = importlib.import_module("amk.bench.tools.subject").Subject
    wanted = [each for each in variants(arguments.ablate) if each]
    cubins = measuring.ablated_cubins(case.schedule, wanted, os.cpu_count() or 1)
    subject: Any = subjects.random(admit(case.schedule), arguments.seed)
    try:
        row: Ablation = measuring.ablate(subject, case.key, cubins)
        return row
    finally:
        subject.free()
        del subject
        gc.collect()
        importlib.import_module("torch").cuda.empty_cache()


def recorded(arguments: argparse.Namespace) -> int:
    """`--ablate ... --rows RECORD...`: needs no GPU. AMK001 for a record that is not there."""
    rows: list[Ablation] = []
    for name in arguments.rows:
        if not Path(name).is_file():
            raise AmkError(Diagnostic("AMK001", "there is no such record", where=Where(file=name)))
        rows += Record.open(Path(name), ABLATIONS).ablations()
    return _printed(arguments, rows, None)


def _printed(arguments: argparse.Namespace, rows: Sequence[Ablation], run: dict[str, object] | None) -> int:
    if arguments.format == "json":
        print_json({"ablations": [row.record() for row in rows], "run": run})
    else:
        for row in rows:
            print(f"\n{_name(row)}{'' if row.correct else ', WRONG'}: {summary(row)}")
            print_table(HEADER, cells(row))
            if pairs_of_row := pairs(row):
                print_table(PAIRS, pairs_of_row)
            for name, why in row.left_out.items():
                print(f"without {name} is left out: {why}")
    return Exit.SAFE if all(row.correct for row in rows) else Exit.UNSAFE


def _name(row: Ablation) -> str:
    key = row.key
    return f"{key.model} {key.dtype}, batch {key.batch}, position {key.pos}"
