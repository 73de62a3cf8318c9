"""All runs too long for CI, at once and as far as the time goes.

    python -m tests.validator.evidence --jobs 64 --seconds 3000 --records FOLDER

Runs are made in the order of `--only`: where the time is short, the first are whole. Records grow in their folder (see
`tests.long_run`); the same command again goes on, and a table at the end says how far each run is. An empty folder
makes all of them at this commit. Runs whose tools are missing (spin, a C compiler, NVRTC) are left out and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from amk.lowering.compile import compiler_build
from amk.report.diagnostic import AmkError
from tests import long_run
from tests.long_run import Run
from tests.validator import compiled_explorer, spin
from tests.validator.long_checks import WHAT

COMPILED = frozenset({"random", "exhaustive"})
COMPILED_KERNELS = frozenset({"lowering", "ptx", "lanes", "sizes", "defaults", "neighbourhood", "values", "pairs"})


def missing(what: str) -> str | None:
    """Why a run cannot be made here."""
    if what == "promela":
        return spin.missing()
    if what in COMPILED_KERNELS:
        return "no numba" if importlib.util.find_spec("numba") is None else _no_compiler()
    if what == "edits" and importlib.util.find_spec("pytest") is None:
        return "no pytest"
    return "no C compiler" if what in COMPILED and compiled_explorer.compiler() is None else None


def _no_compiler() -> str | None:
    try:
        compiler_build()
    except AmkError as error:
        return error.diagnostics[0].message
    return None


def table(runs: list[Run]) -> str:
    """How far each run is."""
    rows = ["| run | slices | of | processor minutes | differences |", "|---|---|---|---|---|"]
    for run in runs:
        of = f"{run.slices:,}" if run.cpu_seconds is None else f"{run.cpu_seconds / 60:,.0f} minutes"
        minutes, differences = run.record["cpu_seconds"] / 60, len(run.record["differences"])
        rows.append(f"| {run.name} | {run.finished:,} | {of} | {minutes:,.0f} | {differences} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, default=Path("tests/records/proof"), help="folder")
    parser.add_argument("--only", choices=sorted(WHAT), nargs="+", default=sorted(WHAT), help="these runs")
    long_run.arguments(parser)
    options = parser.parse_args()
    options.records.mkdir(parents=True, exist_ok=True)
    runs = []
    for what in options.only:
        if reason := missing(what):
            print(f"left out: {what}: {reason}")
        else:
            runs.append(WHAT[what].run(what, options.records / WHAT[what].record))
    status = long_run.go(runs, options)
    print(table(runs))
    return status


if __name__ == "__main__":
    sys.exit(main())
