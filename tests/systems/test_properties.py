"""Random systems as files: the verdict is that of exhaustive exploration, and certificates prove what they say."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from amk.judges.explore import StateSpaceTooLarge, explore, explore_memory
from amk.judges.flat_checker import Checked
from amk.judges.replay import replay
from amk.systems import proof
from amk.systems.document import parse_system, written
from amk.systems.flat_certificate import certificate
from amk.systems.flat_system import FlatSystem
from amk.systems.proof import check
from amk.systems.verdict import judged
from amk.validator.memory.flat import judge
from amk.validator.order.greedy_run import greedy
from amk.validator.program.system import System
from tests.systems.weak_runs import Weak
from tests.validator.random_systems import random_systems

STRONG, RELAXED, FORGED = 240, 60, 80
"""Systems in one run of the tests; `AMK_SYSTEMS=10` takes ten times as many."""
MORE = int(os.environ.get("AMK_SYSTEMS", "1"))


def read_back(system: FlatSystem) -> tuple[FlatSystem, dict[str, Any]]:
    text = written(system)
    return parse_system(text.encode(), "system.json"), json.loads(text)


def explored(system: System) -> bool:
    """SAFE by definition; what races may read anything."""
    found = explore(system)
    return not found.deadlock and not found.races and not explore_memory(system)


@pytest.mark.turns(4)
def test_files_of_random_systems_get_the_verdict_of_exploration() -> None:
    counts: Counter[str] = Counter()
    for number, system in enumerate(random_systems(STRONG * MORE, seed=41)):
        plain = FlatSystem.plain(system)
        back, document = read_back(plain)
        verdict = judged(back)
        assert back.block.digest == system.digest
        if number % 4 == 0:
            assert judged(plain).verdict == verdict.verdict
            assert verdict.safe == explored(system)
        counts[verdict.verdict if verdict.finding is None else verdict.finding.diagnostic.code] += 1
        if verdict.safe:
            assert check(document, certificate(back)).accepted
        else:
            found = verdict.witness_json()
            assert found is not None and replay(found["system"], found["witness"])
    assert min(counts[name] for name in ("SAFE", "AMK301", "AMK302", "AMK104")) > 4, counts


def weakened(system: System, rng: Random) -> FlatSystem:
    def some(count: int) -> Any:
        return np.array([rng.random() < 0.6 for _ in range(count)], dtype=bool)

    plain = FlatSystem.plain(system)
    return replace(plain, acquires=some(len(system.wait_counter)), releases=some(len(system.signal_counter)))


def safe_systems(count: int, seed: int) -> Iterator[System]:
    """Small systems that are SAFE and in which something is ordered by a wait."""
    for system in random_systems(count, seed, max_agents=3, max_events=3):
        run = greedy(system)
        if run.complete and len(system.wait_counter) > 1 and judge(system).safe:
            yield system


@pytest.mark.turns(4)
def test_relaxed_operations_mean_what_happens_before_says() -> None:
    """SAFE: no interleaving has a race. UNSAFE: some has one, or reads wrongly. UNKNOWN is rare."""
    rng, counts = Random(5), Counter[str]()
    for system in safe_systems(4 * RELAXED * MORE, seed=43):
        for _ in range(2):
            weak = weakened(system, rng)
            verdict = judged(weak)
            try:
                racy = Weak(weak, 20_000).visit()
            except StateSpaceTooLarge:
                continue
            counts[verdict.verdict] += 1
            assert verdict.safe <= (not racy) and (verdict.verdict == "UNSAFE") <= racy
            if verdict.safe:
                back, document = read_back(weak)
                assert check(document, certificate(back)).accepted
    assert counts["UNSAFE"] > 4 and counts["SAFE"] > 20, counts
    assert counts["UNKNOWN"] * 10 < sum(counts.values()), counts


def forgeries(rng: Random, evidence: dict[str, Any]) -> Any:
    """Evidence with one number changed, or without one of its systems."""
    name = rng.choice(sorted(evidence["systems"]))
    part = evidence["systems"][name]
    rows = [row for key in ("order", "thresholds", "clocks") for row in part[key] if row]
    if rows:
        row = rng.choice(rows)
        row[rng.randrange(len(row))] += rng.choice((-1, 1, 2))
    return evidence


@pytest.mark.turns(4)
def test_no_certificate_is_accepted_for_an_unsafe_system() -> None:
    """Evidence of a system for its weakened or edited neighbour, with the digest made to fit; and changed numbers."""
    rng, tried = Random(9), 0
    for system in safe_systems(4 * FORGED * MORE, seed=47):
        evidence = certificate(FlatSystem.plain(system))
        weak = weakened(system, rng)
        back, document = read_back(weak)
        forged = json.loads(json.dumps(evidence))
        forged["systems"]["word"] = {**forged["systems"]["block"], "system": weak.word.digest}
        if not judged(back).safe:
            tried += 1
            assert not check(document, evidence).accepted
            assert not check(document, forged).accepted
            assert not check(document, forgeries(rng, forged)).accepted
        elif weak.word is not weak.block:
            assert not check(document, evidence).accepted
    assert tried > 3


def test_checking_derives_what_is_ordered_as_judging_does() -> None:
    """Two derivations of `word` that share nothing: the checker's digest of its own is the judge's."""
    rng = Random(11)
    for system in random_systems(60, seed=53):
        weak = weakened(system, rng)
        document = read_back(weak)[1]
        block = proof.filled(document["systems"]["block"])
        others = proof._others(document, block, document["orders"])
        assert ("word" in others) == (weak.word is not weak.block)
        for columns in others.values():
            assert Checked(columns).digest() == weak.word.digest
