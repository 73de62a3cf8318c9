"""Kernels with an open loop: what is SAFE is safe unrolled further than the proof looked; the usual mistakes show."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

import amk
from amk.report.diagnostic import AmkError
from amk.systems import LoopSystem
from amk.systems.affine import Index
from amk.systems.open_loop import LoopVerdict, judged_loops
from amk.systems.verdict import judged
from tests.systems.random_loops import built, random_program

SYSTEMS = 40 * int(os.environ.get("AMK_SYSTEMS", "1"))
TILE = 1024


def ring(slots: int = 3, short: int = 0, free: int | None = None, early: bool = False, at_least: int = 0) -> LoopSystem:
    """One counter of filled tiles, one of free slots."""
    sys = LoopSystem("ring", at_least=at_least)
    tiles = sys.buffer("slots", slots * TILE)
    full = sys.counter("full", scope="cta")
    empty = sys.counter("empty", scope="cta", init=slots if free is None else free)
    with sys.agent("producer") as p, p.loop() as k:
        p.wait(empty, k + 1)
        p.write(tiles, k % slots * TILE, k % slots * TILE + TILE, value=("tile", k))
        p.signal(full)
    with sys.agent("consumer") as c, c.loop() as k:
        c.wait(full, k + 1 - short)
        if early:
            c.signal(empty)
        c.read(tiles, k % slots * TILE, k % slots * TILE + TILE, value=("tile", k))
        if not early:
            c.signal(empty)
    return sys


def barriers(slots: int, stale: bool = False) -> LoopSystem:
    """A pair of mbarriers for each slot; stale: the phase that the consumer waits for is one too low."""
    sys = LoopSystem("barriers")
    tiles = sys.buffer("slots", slots * TILE)
    full = sys.counters("full", slots, scope="cta")
    empty = sys.counters("empty", slots, scope="cta", init=1)
    with sys.agent("producer") as p, p.loop() as k:
        p.wait(empty[k % slots], k // slots + 1)
        p.write(tiles, k % slots * TILE, k % slots * TILE + TILE, value=("tile", k))
        p.signal(full[k % slots])
    with sys.agent("consumer") as c, c.loop() as k:
        c.wait(full[k % slots], k // slots + 1 - int(stale))
        c.read(tiles, k % slots * TILE, k % slots * TILE + TILE, value=("tile", k))
        c.signal(empty[k % slots])
    return sys


def grid(workers: int, early: bool = False) -> LoopSystem:
    """A barrier of the grid in every lap: all write their part of one buffer and read a neighbour's of the other."""
    sys = LoopSystem("grid")
    data, arrived = sys.buffer("data", 2 * workers * 16), sys.counter("arrived")
    sys.initial(data, workers * 16, 2 * workers * 16, "start")
    for n in range(workers):
        with sys.agent(f"worker {n}", cta=n) as w, w.loop() as k:
            mine, other = k % 2 * workers * 16, (k + 1) % 2 * workers * 16 + (n + 1) % workers * 16
            w.wait(arrived, k * workers)
            w.write(data, mine + n * 16, mine + n * 16 + 16)
            if early:
                w.signal(arrived)
            w.read(data, other, other + 16)
            if not early:
                w.signal(arrived)
    return sys


SAFE = [ring(slots) for slots in (1, 3)] + [barriers(2), grid(3)]
UNSAFE = [ring(short=1), ring(free=4), ring(early=True), barriers(2, stale=True), grid(3, early=True)]


@pytest.mark.parametrize("system", SAFE, ids=lambda s: s.name)
def test_right_kernels_are_safe_for_every_number_of_laps(system: LoopSystem) -> None:
    verdict = amk.verify(system)
    assert verdict.verdict == "SAFE", verdict
    for laps in range(verdict.laps + 1, verdict.laps + 4):
        assert judged(system.unrolled(laps).flat()).safe


@pytest.mark.parametrize("system", UNSAFE, ids=lambda s: s.name)
def test_mistakes_are_shown_with_the_fewest_laps(system: LoopSystem) -> None:
    verdict = amk.verify(system)
    assert verdict.verdict == "UNSAFE" and verdict.unsafe is not None and "test_loops.py" in verdict.explain()
    assert verdict.unsafe.witness_json() is not None
    fewest = int(verdict.unsafe.system.name.split()[-2])
    assert all(judged(system.unrolled(laps).flat()).safe for laps in range(fewest))


def test_what_goes_wrong_only_after_many_laps_is_never_safe() -> None:
    """The race needs 31 laps of the light producer: no short unrolling shows it, and the induction must not hold."""
    sys = LoopSystem("late")
    data, full = sys.buffer("data", 1 << 20), sys.counter("full")
    with sys.agent("light") as light, light.loop():
        light.signal(full)
    with sys.agent("heavy") as heavy, heavy.loop() as k:
        heavy.write(data, k * 16, k * 16 + 16)
        heavy.signal(full, 30)
    with sys.agent("taker") as taker, taker.loop() as k:
        taker.wait(full, 31 * k + 31)
        taker.read(data, k * 16, k * 16 + 16)
    assert not judged(sys.unrolled(40).flat()).safe and judged(sys.unrolled(17).flat()).safe
    assert amk.verify(sys).verdict == "UNKNOWN"


def test_bounded_loops_are_decided_by_unrolling_and_what_is_outside_is_unknown() -> None:
    sys = LoopSystem("grows", at_most=6)
    full = sys.counter("full")
    with sys.agent("a") as a, a.loop() as k:
        a.signal(full, k + 1)
    assert amk.verify(sys).safe
    sys.at_most = None
    verdict = amk.verify(sys)
    assert verdict.verdict == "UNKNOWN" and "number of arrivals or bytes grows" in verdict.explain()
    with pytest.raises(AmkError) as error, sys.agent("b") as b, b.loop(), b.loop():
        pass
    assert error.value.diagnostics[0].code == "AMK205"


def test_indices_are_what_python_computes() -> None:
    rng = Random(2)
    for _ in range(300):
        index, plain = Index(), (lambda k: k)
        for _ in range(rng.randint(1, 4)):
            how, n = rng.randrange(4), rng.randint(1, 6)
            index = (index + n, index * n, index % n, index // n)[how]
            plain = [
                lambda k, f=plain, n=n: f(k) + n, lambda k, f=plain, n=n: f(k) * n,
                lambda k, f=plain, n=n: f(k) % n, lambda k, f=plain, n=n: f(k) // n,
            ][how]  # fmt: skip
            if index.period > 12:
                break
        assert [index.at(k) for k in range(40)] == [plain(k) for k in range(40)]


def agrees(verdict: LoopVerdict, further: tuple[int, ...]) -> bool:
    """SAFE is safe for more laps than were unrolled; UNSAFE has a witness."""
    if verdict.safe:
        return all(judged(verdict.system.unrolled(verdict.laps + more).flat()).safe for more in further)
    return verdict.verdict == "UNKNOWN" or verdict.unsafe is not None


@pytest.mark.turns(4)
def test_random_kernels_are_safe_only_if_longer_unrollings_are() -> None:
    rng, counts = Random(17), Counter[str]()
    for _ in range(SYSTEMS):
        verdict = judged_loops(built(random_program(rng)))
        counts[verdict.verdict] += 1
        assert agrees(verdict, (1, 2, 12))
    assert min(counts["SAFE"], counts["UNSAFE"]) * 4 > SYSTEMS and counts["UNKNOWN"] * 10 < SYSTEMS, counts
