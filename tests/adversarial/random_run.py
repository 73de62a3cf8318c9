"""A command that draws schedules from a seed, for so many seconds, and writes those that are refuted to a folder."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from amk.adversary.edits import Json

Look = tuple[list[str], Json, str, str]
"""Edits of a schedule by name, the schedule, its verdict, and who refutes that and why: empty if nobody does."""


def main(
    about: str | None, look: Callable[[Random, Counter[str]], Look], passed: str, ending: str | None = None
) -> int:
    """1 if a schedule is refuted.

    look: draws one, of the random numbers and the verdicts so far. passed: the verdict of which edits are counted.
    ending: schedules whose verdict ends with it are written though nobody refutes them.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--holes", type=Path, default=Path("holes"), help="folder")
    arguments = parser.parse_args()
    rng, end = Random(arguments.seed), time.monotonic() + arguments.seconds
    found, edits, holes = Counter[str](), Counter[str](), 0
    while time.monotonic() < end:
        names, document, verdict, wrong = look(rng, found)
        found[verdict] += 1
        edits.update(names if verdict == passed else ())
        holes += bool(wrong)
        if wrong or (ending is not None and verdict.endswith(ending)):
            arguments.holes.mkdir(parents=True, exist_ok=True)
            file = arguments.holes / f"{'hole' if wrong else 'kept'}-{arguments.seed}-{found.total()}.json"
            file.write_text(json.dumps(document) + "\n")
            print(f"{file}: {' '.join(names)}: {verdict} {wrong}", flush=True)
    print(f"{dict(found)}, holes: {holes}, {passed} ones by edit: {dict(edits)}")
    return 1 if holes else 0
