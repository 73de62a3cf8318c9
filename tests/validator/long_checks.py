"""By hand: `python -m tests.validator.long_checks WHAT --record FILE [--seconds S]`; see `tests.long_run`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from amk.adversary.classes.table import CLASSES
from amk.adversary.confusion import HEAD, Table, decide, mutation
from amk.adversary.forgeries import Victim, offer, victims
from amk.validator.memory.flat import judge
from tests import long_run
from tests.adversarial.full_size import full_size_slice
from tests.adversarial.fuzz import fuzzed, outcome
from tests.adversarial.whole_neighbourhood import (
    ABSTRACT_SLICES,
    PAIR_SLICES,
    SLICES,
    SPLIT_SLICES,
    VALUE_SLICES,
    abstract_slice,
    neighbourhood_slice,
    pairs_slice,
    splits_slice,
    values_slice,
)
from tests.emulator.default_runs import SLICES as DEFAULTS
from tests.emulator.default_runs import defaults_slice
from tests.long_run import Run
from tests.lowering.edits.lane_barriers import SLICES as LANES
from tests.lowering.edits.lane_barriers import lanes_slice
from tests.lowering.edits.ptx_run import SLICES as PTX
from tests.lowering.edits.ptx_run import ptx_slice
from tests.lowering.edits.run import SLICES as LOWERING
from tests.lowering.edits.run import edits_slice as lowering_slice
from tests.systems import long_forgeries, long_loops, long_rules
from tests.validator.any_sizes import SLICES as SIZES
from tests.validator.any_sizes import sizes_slice
from tests.validator.batches import differences
from tests.validator.exhaustive import batches
from tests.validator.mutants import edits_slice, mutants
from tests.validator.random_systems import random_batch, random_system
from tests.validator.spin import spin
from tests.validator.two_level import compare, random_two_level

BATCH = 50
SYSTEMS = 5_000


def random_slice(number: int) -> dict[str, Any]:
    """5,000 random systems: verdict, maximal cut, every clock, race set equal exploration of every reachable cut."""
    rng = Random(10_000_019 + number)
    counts: Counter[str] = Counter()
    lines = []
    for n in range(SYSTEMS // BATCH):
        found, counted = differences(random_batch(rng, BATCH))
        counts.update(counted)
        lines += [f"slice {number} batch {n}: {line}" for line in found]
    return {**counts, "differences": lines}


def two_level_slice(number: int) -> dict[str, Any]:
    """250 random two-level systems: liveness and every order, composed against flat."""
    rng = Random(20_000_003 + number)
    counts: Counter[str] = Counter()
    lines = []
    for n in range(250):
        found = compare(random_two_level(rng))
        counts["systems"] += 1
        counts["live"] += found.live
        counts["partial"] += found.partial
        counts["implied by partial thresholds alone"] += found.implied > 0
        lines += [f"slice {number} system {n}: {line}" for line in found.wrong]
    return {**counts, "differences": lines}


def exhaustive_slice(number: int) -> dict[str, Any]:
    """One of the 4,096 slices of all small systems up to isomorphism."""
    counts: Counter[str] = Counter()
    lines = []
    for n, (shape, batch) in enumerate(batches(number)):
        found, counted = differences(batch)
        counts.update(counted)
        lines += [f"slice {number} shape {shape} batch {n}: {line}" for line in found]
    return {**counts, "differences": lines}


def promela_slice(number: int) -> dict[str, Any]:
    """10 random systems: deadlock and races as spin finds them in the Promela model."""
    rng = Random(30_000_001 + number)
    counts: Counter[str] = Counter()
    lines = []
    for n in range(10):
        system = random_system(rng)
        mine, theirs = judge(system), spin(system)
        counts.update({"systems": 1, "deadlock": theirs[0], "racy": theirs[1]})
        if theirs != (mine.deadlock is not None, mine.races.racy):
            lines.append(f"slice {number} system {n}: spin says (stuck, racy) = {theirs}")
    return {**counts, "differences": lines}


def fuzz_slice(number: int) -> dict[str, Any]:
    """500 damaged schedules."""
    rng = Random(40_000_003 + number)
    counts: Counter[str] = Counter()
    lines = []
    for n in range(500):
        found = outcome(fuzzed(rng))
        counts["! wrong" if found.startswith("!") else found] += 1
        lines += [f"slice {number} document {n}: {found}"] if found.startswith("!") else []
    return {**counts, "differences": lines}


MUTANTS_EACH = 5
FORGERIES = 500


def mutants_slice(number: int) -> dict[str, Any]:
    """220 mutants of small plans, 5 of every class: both judges, every witness, every SAFE's certificate."""
    table = Table()
    for kind in CLASSES:
        for n in range(MUTANTS_EACH):
            table.add(decide(mutation(kind.number, f"evidence/{number}/{n}")))
    found = table.as_json()
    lines = [f"slice {number}: {line}" for line in table.differences]
    heads = {name: found[name] for name in (*HEAD, "unknown_outside")}
    return heads | {"classes": found["classes"], "differences": lines}


@cache
def _victims() -> list[Victim]:
    return list(victims())


def forgeries_slice(number: int) -> dict[str, Any]:
    """500 forged certificates of unsafe schedules offered to the checker."""
    reasons, accepted = offer(_victims(), FORGERIES, f"evidence/{number}")
    lines = [f"slice {number}: accepted {line}" for line in accepted]
    return {"offered": FORGERIES, "accepted": len(accepted), "reasons": dict(reasons), "differences": lines}


@dataclass(frozen=True)
class Check:
    """slices: all of them; guess: seconds of one. cpu_seconds: ends after this much work, whatever slices it takes."""

    slice_: Callable[[int], dict[str, Any]]
    record: str
    slices: int
    guess: float
    cpu_seconds: float | None = None

    def run(self, name: str, path: Path) -> Run:
        return Run(name, self.slice_, path, self.slices, self.cpu_seconds, self.guess)


HOURS = 4 * 3600.0
WHAT: dict[str, Check] = {
    "random": Check(random_slice, "random-systems.json", 200, 4.0),
    "two-level": Check(two_level_slice, "two-level-systems.json", 200, 2.0),
    "exhaustive": Check(exhaustive_slice, "exhaustive-systems.json", 4096, 0.3),
    "promela": Check(promela_slice, "promela-systems.json", 50, 6.0),
    "fuzz": Check(fuzz_slice, "fuzzed-schedules.json", 100_000, 12.0, HOURS),
    "mutants": Check(mutants_slice, "adversarial-mutants.json", 910, 20.0),
    "full-size": Check(full_size_slice, "full-size-mutants.json", 500, 15.0),
    "edits": Check(edits_slice, "validator-mutants.json", len(mutants()), 25.0),
    "forgeries": Check(forgeries_slice, "forgeries.json", 200, 10.0),
    "lowering": Check(lowering_slice, "lowering-edits.json", LOWERING, 20.0),
    "ptx": Check(ptx_slice, "ptx-edits.json", PTX, 40.0),
    "lanes": Check(lanes_slice, "lane-barriers.json", LANES, 20.0),
    "sizes": Check(sizes_slice, "sizes.json", SIZES, 15.0),
    "defaults": Check(defaults_slice, "default-plans.json", DEFAULTS, 40.0),
    "neighbourhood": Check(neighbourhood_slice, "neighbourhood.json", SLICES, 30.0),
    "abstractions": Check(abstract_slice, "neighbourhood-abstractions.json", ABSTRACT_SLICES, 20.0),
    "values": Check(values_slice, "neighbourhood-further.json", VALUE_SLICES, 40.0),
    "pairs": Check(pairs_slice, "neighbourhood-pairs-run.json", PAIR_SLICES, 20.0),
    "splits": Check(splits_slice, "neighbourhood-splits.json", SPLIT_SLICES, 15.0),
    "system-rules": Check(long_rules.compare, "system-rules.json", long_rules.SLICES, 60.0),
    "system-loops": Check(long_loops.compare, "system-loops.json", long_loops.SLICES, 5.0),
    "system-forgeries": Check(long_forgeries.attack, "system-forgeries.json", long_forgeries.SLICES, 20.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=sorted(WHAT))
    parser.add_argument("--record", type=Path, required=True, help="JSON file to continue")
    long_run.arguments(parser)
    options = parser.parse_args()
    return long_run.go([WHAT[options.what].run(options.what, options.record)], options)


if __name__ == "__main__":
    sys.exit(main())
