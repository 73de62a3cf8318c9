"""By hand: `python -m tests.validator.long_checks WHAT --record FILE [--seconds S]`; see `tests.long_run`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from amk.validator.flat import judge
from tests import long_run
from tests.adversarial.fuzz import fuzzed, outcome
from tests.validator.batches import differences
from tests.validator.exhaustive import batches
from tests.validator.random_systems import random_batch, random_system
from tests.validator.spin import spin
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


def exhaustive_slice(number: int) -> dict[str, Any]:
    """One of the 4,096 slices of all small systems up to isomorphism."""
    counts: Counter[str] = Counter()
    told = []
    for n, (shape, batch) in enumerate(batches(number)):
        found, counted = differences(batch)
        counts.update(counted)
        told += [f"slice {number} shape {shape} batch {n}: {line}" for line in found]
    return {**counts, "differences": told}


def promela_slice(number: int) -> dict[str, Any]:
    """10 random systems: deadlock and races as spin finds them in the Promela model."""
    rng = Random(30_000_001 + number)
    counts: Counter[str] = Counter()
    told = []
    for n in range(10):
        system = random_system(rng)
        mine, theirs = judge(system), spin(system)
        counts.update({"systems": 1, "deadlock": theirs[0], "racy": theirs[1]})
        if theirs != (mine.deadlock is not None, mine.races.racy):
            told.append(f"slice {number} system {n}: spin says (stuck, racy) = {theirs}")
    return {**counts, "differences": told}


def fuzz_slice(number: int) -> dict[str, Any]:
    """500 damaged schedules."""
    rng = Random(40_000_003 + number)
    counts: Counter[str] = Counter()
    told = []
    for n in range(500):
        found = outcome(fuzzed(rng))
        counts["! wrong" if found.startswith("!") else found] += 1
        told += [f"slice {number} document {n}: {found}"] if found.startswith("!") else []
    return {**counts, "differences": told}


WHAT: dict[str, Callable[[int], dict[str, Any]]] = {
    "random": random_slice,
    "two-level": two_level_slice,
    "exhaustive": exhaustive_slice,
    "promela": promela_slice,
    "fuzz": fuzz_slice,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=sorted(WHAT))
    long_run.arguments(parser)
    options = parser.parse_args()
    return long_run.run(options.what, WHAT[options.what], options)


if __name__ == "__main__":
    sys.exit(main())
