"""All runs too long for CI, at once and as far as the time goes.

    python -m tests.validator.evidence --jobs 60 --seconds 560 --records tests/records/proof

Records grow in their folder (see `tests.long_run`); the same command again goes on. Runs whose tools are missing (spin,
a C compiler) are left out and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from tests import long_run
from tests.validator import compiled_explorer, spin
from tests.validator.long_checks import WHAT

COMPILED = frozenset({"random", "exhaustive"})


def missing(what: str) -> str | None:
    """Why a run cannot be made here."""
    if what == "promela":
        return spin.missing()
    if what == "lowering" and importlib.util.find_spec("numba") is None:
        return "no numba"
    if what == "edits" and importlib.util.find_spec("pytest") is None:
        return "no pytest"
    return "no C compiler" if what in COMPILED and compiled_explorer.compiler() is None else None


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
    return long_run.go(runs, options)


if __name__ == "__main__":
    sys.exit(main())
