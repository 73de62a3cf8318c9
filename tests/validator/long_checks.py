"""By hand: `python -m tests.validator.long_checks WHAT --record FILE [--seconds S]`; see `tests.long_run`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests import long_run
from tests.validator.batches import differences
from tests.validator.random_systems import random_batch
from tests.validator.two_level import compare, random_two_level

BATCH = 50
SYSTEMS = 5_000


def random_slice(number: int) -> dict[str, Any]:
    """5,000 random systems: verdict, maximal cut, every clock, race set equal exploration of every reachable cut."""
    rng = Random(10_000_019 + number)
    counts: Counter[str] = Counter()
    told = []
    for n in range(SYSTEMS // BATCH):
        found, counted = differences(random_batch(rng, BATCH))
        counts.update(counted)
        told += [f"slice {number} batch {n}: {line}" for line in found]
    return {**counts, "differences": told}


def two_level_slice(number: int) -> dict[str, Any]:
    """250 random two-level systems: liveness and every order, composed against flat."""
    rng = Random(20_000_003 + number)
    counts: Counter[str] = Counter()
    told = []
    for n in range(250):
        found = compare(random_two_level(rng))
        counts["systems"] += 1
        counts["live"] += found.live
        counts["conjunctive"] += found.conjunctive
        counts["weaker"] += found.weaker
        told += [f"slice {number} system {n}: {line}" for line in found.wrong]
    return {**counts, "differences": told}


WHAT: dict[str, Callable[[int], dict[str, Any]]] = {"random": random_slice, "two-level": two_level_slice}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=sorted(WHAT))
    long_run.arguments(parser)
    options = parser.parse_args()
    return long_run.run(options.what, WHAT[options.what], options)


if __name__ == "__main__":
    sys.exit(main())
