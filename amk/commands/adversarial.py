"""`amk adversarial`: judge schedules that are wrong on purpose, and count where the verdict differs from the truth."""

import argparse
import gc
import os
from collections.abc import Iterator
from pathlib import Path

from amk.adversary.classes.table import CLASSES
from amk.adversary.confusion import Outcome, Table, decide_all, share
from amk.adversary.suite import run_suite
from amk.commands.format_arguments import natural
from amk.commands.output import add_format, print_json, print_table
from amk.processes import process_pool
from amk.report.diagnostic import Exit

DEFAULT_MUTANTS = 5_000
BATCH = 120
"""Mutants of one class that one process judges: they share most of what is asked, and some are drawn twice."""
COUNTS = ("cases", "plans", "safe", "unsafe", "open", "false_accepts", "false_rejects", "unknown", "uncertified")

FLAT = {str(c.number): f"flat systems in part or whole, because {c.flat}" for c in CLASSES if c.flat}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n", type=_positive, nargs="?", const=DEFAULT_MUTANTS, metavar="N",
        help=f"judge N fresh mutants of real plans ({DEFAULT_MUTANTS:,} without a number) in place of the stored cases",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=natural, default=0, help="seed of the mutants, pairs or order of edits (default: 0)"
    )
    parser.add_argument(
        "--neighbourhood", type=Path, metavar="FILE",
        help="make every edit of the text of small schedules, judge each by a run, and add what is found to FILE",
    )  # fmt: skip
    parser.add_argument(
        "--base", action="append", metavar="NAME", help="with --neighbourhood: only this schedule's edits"
    )
    parser.add_argument("--pairs", action="store_true", help="with --neighbourhood: random pairs of edits, without end")
    parser.add_argument("--edits", type=_positive, metavar="N", help="with --neighbourhood: stop after N more edits")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="with --neighbourhood: stop after this time (default: 600)"
    )
    parser.add_argument(
        "--holes", type=Path, metavar="DIR", help="with --neighbourhood: write each kind of schedule wrongly passed"
    )
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="processes (default: all cores)")
    add_format(parser)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def run(arguments: argparse.Namespace) -> int:
    if arguments.neighbourhood is not None:
        from amk.commands.neighbourhood import search  # its planner and its machine take time to load

        return search(arguments)
    table = _mutants(arguments) if arguments.n else run_suite()
    if arguments.format == "json":
        print_json(table.as_json())
    else:
        _print(table)
    return int(Exit.SAFE if table.clean else Exit.UNSAFE)


def _mutants(arguments: argparse.Namespace) -> Table:
    table = Table()
    for outcome in _outcomes(list(share(arguments.n, arguments.seed)), arguments.jobs):
        table.add(outcome)
    return table


def _outcomes(draws: list[tuple[int, str]], jobs: int) -> Iterator[Outcome]:
    classes = {number: [w for w in draws if w[0] == number] for number, _ in draws}
    batches = [mine[i : i + BATCH] for mine in classes.values() for i in range(0, len(mine), BATCH)]
    if jobs == 1:
        for batch in batches:
            yield from _batch(batch)
        return
    with process_pool(jobs) as pool:
        for outcomes in pool.map(_batch, batches):
            yield from outcomes


def _batch(draws: list[tuple[int, str]]) -> list[Outcome]:
    """Judged without the cyclic collector, which takes a seventh of the time and finds little."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return list(decide_all(draws))
    finally:
        if collecting:
            gc.enable()


def _print(table: Table) -> None:
    rows = [[k, table.rows[k].title, *(str(getattr(table.rows[k], c)) for c in COUNTS)] for k in table.kinds]
    rows.append(["", "all", *(str(table.total(c)) for c in COUNTS)])
    print_table(["class", "", *(c.replace("_", " ") for c in COUNTS)], rows)
    for kind in table.kinds:
        if kind in FLAT:
            print(f"class {kind}: {FLAT[kind]}")
    for line in table.differences:
        print(f"differs: {line}")
    if table.empty:
        print(f"classes without a case: {', '.join(table.empty)}")
    if table.thin:
        print(f"classes with few cases of one verdict: {', '.join(table.thin)}")
