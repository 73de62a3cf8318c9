"""What a launch relies on is decided twice, by `launch_needs` and by the checker: alike after every single edit?

    python -m tests.checker.two_evaluators --seconds 900

The edits are those of the neighbourhoods of all small bases, in a fixed shuffle, a few of each base in turn. One that
gives a well-formed schedule is put to both; other names of needs, a verdict of one alone or an exception is a
difference. `--start` goes on behind so many edits of each base.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from random import Random

from pydantic import ValidationError

from amk.adversary.edits import apply
from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.adversary.neighbourhood.mutator import Change, Neighbourhood, schema_of_schedules
from amk.checker.needs import needs_unmet
from amk.checker.programs import Rejected, require_small
from amk.schedule_ir.launch_needs import unmet
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Schedule

ROUND = 25


@dataclass(frozen=True)
class Difference:
    """validator, checker: the needs that each of the two alone finds unmet."""

    name: str
    key: str
    validator: frozenset[str]
    checker: frozenset[str]


@cache
def changes(name: str) -> list[Change]:
    """The single edits of the base, shuffled."""
    every = list(Neighbourhood(base(name), schema_of_schedules()).changes())
    Random(name).shuffle(every)
    return every


def schedule_of(name: str, change: Change) -> Schedule | None:
    """The edited schedule; None if it is ill-formed, or larger than the checker reads."""
    try:
        schedule = Schedule.model_validate_json(json.dumps(apply(base(name), list(change.edits))[0]))
        require_small(schedule)
    except (ValidationError, Rejected):
        return None
    return None if check_references(schedule) else schedule


def names_of(needs: Callable[[], Iterable[str]]) -> frozenset[str]:
    """All of them; the exception, if there is one."""
    try:
        return frozenset(needs())
    except Exception as error:  # noqa: BLE001  # whatever it is, the other one has to raise it too
        return frozenset({f"{type(error).__name__}: {error}"})


def both(schedule: Schedule) -> tuple[frozenset[str], frozenset[str]]:
    """What validator and checker find unmet."""
    validator = names_of(lambda: [need for _, need, _ in unmet(schedule)])
    return validator, names_of(lambda: needs_unmet(schedule))


def compared(name: str, part: Iterable[Change], counts: Counter[str]) -> Iterator[Difference]:
    """The differences; counts: edits by what becomes of them."""
    for change in part:
        schedule = schedule_of(name, change)
        if schedule is None:
            counts["ill-formed"] += 1
            continue
        validator, checker = both(schedule)
        counts["unmet" if validator else "met"] += 1
        if validator != checker:
            yield Difference(name, change.key, validator - checker, checker - validator)


def run(seconds: float, start: int, names: Iterable[str]) -> tuple[Counter[str], list[Difference], int]:
    """(counts, differences, edits of each base that are behind it)"""
    end, counts, differences = time.monotonic() + seconds, Counter[str](), list[Difference]()
    for lo in count(start, ROUND):
        parts = [(name, changes(name)[lo : lo + ROUND]) for name in names]
        for name, part in parts:
            for difference in compared(name, part, counts):
                differences.append(difference)
                print(difference, flush=True)
            if time.monotonic() > end:
                return counts, differences, lo
        if not any(part for _, part in parts):
            return counts, differences, lo
    raise AssertionError


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--base", choices=SMALL_BASES, action="append")
    options = parser.parse_args(arguments)
    counts, differences, behind = run(options.seconds, options.start, options.base or list(SMALL_BASES))
    print(dict(counts), f"{len(differences)} differences, {behind} edits of each base and more")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
