"""`amk bench --table`: every case of a table, resumable, in one or several separate processes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amk.bench.table.measurement import Measurement, measurement
from amk.bench.table.record import Record, merged
from amk.bench.table.row import Row
from amk.bench.table.table import HEADER, OTHERS, Case, Table, as_json, cells, judge, load_table, others
from amk.commands.bench_output import draw
from amk.commands.output import print_json, print_table
from amk.processes import python_module, worker_environment
from amk.report.diagnostic import AmkError, Diagnostic, Exit

PUBLISHED = ("program", "what", "figure", "source")


def measurements_of(arguments: argparse.Namespace) -> list[Measurement]:
    """The cases that can be planned; those that cannot are named on stderr."""
    return list(_planned(arguments, tell=True)[1].values())


def _planned(arguments: argparse.Namespace, *, tell: bool) -> tuple[Table, dict[str, Measurement]]:
    table = load_table(arguments.table)
    chosen = _chosen(arguments, table)
    case_plans: dict[str, Measurement] = {}
    plans: dict[str, Any] = {}
    for case in (table.cases[n - 1] for n in chosen):
        same = case.model_dump_json(include={"model", "dtype", "lm_head", "kv", "context", "settings"})
        try:
            schedule = plans.get(same) or case.schedule(table.gpu)
        except AmkError as error:
            if tell:
                print(f"{case.case}: {error}", file=sys.stderr)
            continue
        plans[same] = schedule
        case_plans[case.case] = measurement(
            schedule, case.pos, tokens=table.tokens, steps=table.steps, baselines=_names(arguments, case),
            run=arguments.run,
        )  # fmt: skip
    return table, case_plans


def _chosen(arguments: argparse.Namespace, table: Table) -> tuple[int, ...]:
    """Numbers of the cases, from 1; AMK005 for one that the table does not have."""
    chosen: tuple[int, ...] = arguments.cases or tuple(range(1, len(table.cases) + 1))
    if max(chosen) > len(table.cases):
        raise AmkError(Diagnostic("AMK005", f"the table has cases 1 to {len(table.cases)}, not {max(chosen)}"))
    return chosen


def _names(arguments: argparse.Namespace, case: Case) -> tuple[str, ...]:
    return case.baselines if arguments.baselines is None else tuple(arguments.baselines)


def print_table_of(arguments: argparse.Namespace, rows: Sequence[Row], provenance: dict[str, Any] | None) -> None:
    """Every case asked for, with what it must reach and what the rows of all runs say."""
    table, plans = _planned(argparse.Namespace(**vars(arguments) | {"cases": None}), tell=False)
    every = judge(table, {name: each.key for name, each in plans.items()}, rows)
    judged = [(n, every[n - 1]) for n in _chosen(arguments, table)]
    if arguments.format == "json":
        published = [each.model_dump() for each in table.published]
        print_json({"cases": [as_json(each) for _, each in judged], "published": published, "run": provenance})
        return
    print_table(("#", *HEADER), [(str(n), *cells(each)) for n, each in judged])
    for number, each in judged:
        for name, why in each.left_out().items():
            print(f"\n{number}: {name} is left out: {why}")
    if known := others(table):
        print("\nOther programs, for these cases:")
        print_table(OTHERS, known)
    if table.published:
        print("\nPublished by others, not measured here:")
        print_table(PUBLISHED, [(p.program, p.what, p.figure, p.source) for p in table.published])


def judged_only(arguments: argparse.Namespace) -> int:
    """`--table NAME --rows RECORD...`: needs no GPU."""
    rows = merged([Path(name) for name in arguments.rows], Path(arguments.record) if arguments.record else None)
    print_table_of(arguments, rows, None)
    if arguments.plot:
        draw(Path(arguments.plot), rows)
    return Exit.SAFE if all(row.correct for row in rows) else Exit.UNSAFE


def separate_runs(arguments: argparse.Namespace, began: float) -> int:
    """One process a run, until the time is used up; then what all of them recorded."""
    words = _without(sys.argv[1:], ("--runs", "--time-limit", "--run"), ("--baselines-once",))
    bare = [*_without(words, ("--baselines",)), "--baselines", "none"]
    codes = []
    for number in range(1, arguments.runs + 1):
        left = arguments.time_limit - (time.monotonic() - began) if arguments.time_limit else None
        if left is not None and left < 1:
            print(f"run {number} and later ones were not begun in time", file=sys.stderr)
            break
        limit = [] if left is None else ["--time-limit", str(int(left))]
        own = bare if arguments.baselines_once and number > 1 else words
        command = [*python_module("amk"), *own, "--run", str(number), *limit]
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=worker_environment(os.environ))
        codes.append(done.returncode)
        if codes[-1] not in (Exit.SAFE, Exit.UNSAFE):
            return codes[-1]
    rows = Record.open(Path(arguments.record)).rows()
    print_table_of(arguments, rows, None)
    return max(codes, default=Exit.SAFE)


def _without(words: Sequence[str], valued: Sequence[str], bare: Sequence[str] = ()) -> list[str]:
    """`words` without these options, each of `valued` with the word behind it."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in valued:
            skip = True
        elif word not in bare and not word.startswith(tuple(f"{name}=" for name in valued)):
            kept.append(word)
    return kept
