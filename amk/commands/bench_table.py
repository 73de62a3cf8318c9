"""`amk bench --table`: every case of a table, resumable, in one or several separate processes."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amk.bench.record import Record
from amk.bench.row import Row
from amk.bench.table import HEADER, Case, Table, as_json, cells, judge, load_table
from amk.bench.wanted import Wanted, wanted
from amk.commands.output import print_json, print_table
from amk.report.diagnostic import AmkError, Exit

PUBLISHED = ("program", "what", "figure", "source")


def wanted_of(arguments: argparse.Namespace) -> list[Wanted]:
    """The cases that can be planned; those that cannot are named on stderr."""
    return list(_planned(arguments, tell=True)[1].values())


def _planned(arguments: argparse.Namespace, *, tell: bool) -> tuple[Table, dict[str, Wanted]]:
    table = load_table(arguments.table)
    found: dict[str, Wanted] = {}
    plans: dict[str, Any] = {}
    for case in table.cases:
        same = case.model_dump_json(include={"model", "dtype", "lm_head", "kv", "context", "settings"})
        try:
            schedule = plans.get(same) or case.schedule(table.gpu)
        except AmkError as error:
            if tell:
                print(f"{case.case}: {error}", file=sys.stderr)
            continue
        plans[same] = schedule
        found[case.case] = wanted(
            schedule, case.pos, tokens=table.tokens, steps=table.steps, baselines=_names(arguments, case),
            run=arguments.run,
        )  # fmt: skip
    return table, found


def _names(arguments: argparse.Namespace, case: Case) -> tuple[str, ...]:
    return case.baselines if arguments.baselines is None else tuple(arguments.baselines)


def print_table_of(arguments: argparse.Namespace, rows: Sequence[Row], provenance: dict[str, Any] | None) -> None:
    """Every case with what it must reach and what the rows of all runs say."""
    table, found = _planned(arguments, tell=False)
    judged = judge(table, {name: each.key for name, each in found.items()}, rows)
    if arguments.format == "json":
        published = [each.model_dump() for each in table.published]
        print_json({"cases": [as_json(each) for each in judged], "published": published, "run": provenance})
        return
    print_table(HEADER, [cells(each) for each in judged])
    if table.published:
        print("\nPublished by others, not measured here:")
        print_table(PUBLISHED, [(p.program, p.what, p.figure, p.source) for p in table.published])


def separate_runs(arguments: argparse.Namespace, began: float) -> int:
    """One process a run, until the time is used up; then what all of them recorded."""
    words = _without_runs(sys.argv[1:])
    codes = []
    for number in range(1, arguments.runs + 1):
        left = arguments.time_limit - (time.monotonic() - began) if arguments.time_limit else None
        if left is not None and left < 1:
            print(f"run {number} and later ones were not begun in time", file=sys.stderr)
            break
        limit = [] if left is None else ["--time-limit", str(int(left))]
        command = [sys.executable, "-m", "amk", *words, "--run", str(number), *limit]
        codes.append(subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode)
        if codes[-1] not in (Exit.SAFE, Exit.UNSAFE):
            return codes[-1]
    rows = Record.open(Path(arguments.record)).rows()
    print_table_of(arguments, rows, None)
    return max(codes, default=Exit.SAFE)


def _without_runs(words: Sequence[str]) -> list[str]:
    """The arguments of one run: the number of runs and the time are the caller's, the last word on the rest too."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("--runs", "--time-limit", "--run"):
            skip = True
        elif not word.startswith(("--runs=", "--time-limit=", "--run=")):
            kept.append(word)
    return kept
