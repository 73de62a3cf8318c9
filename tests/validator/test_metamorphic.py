"""Changes of a system that must not change its verdict, or change it in one direction only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest

from amk.validator.memory.flat import Judgement, judge
from amk.validator.program.system import System, assemble
from tests.cases import cases
from tests.validator.random_systems import random_system

SYSTEMS = cases(80, 250)
Row = tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """A system as unsorted rows, see `assemble`; events are numbered as in the system."""

    agents: int
    agent: list[int]
    init: list[int]
    waits: list[Row]
    signals: list[Row]
    accesses: list[Row]
    initial: list[Row]
    final: list[Row]

    def system(self) -> tuple[System, list[int]]:
        """The system, and the new number of every event."""
        system, ids = assemble(
            self.agents, self.agent, self.init, self.waits, self.signals, self.accesses, self.initial, self.final
        )
        return system, ids.tolist()


def rows_of(system: System) -> Rows:
    def table(*names: str) -> list[Row]:
        return list(zip(*(getattr(system, n).tolist() for n in names), strict=True))

    access = ("buffer", "lo", "hi", "kind", "value", "delta")
    box = ("buffer", "lo", "hi", "value", "delta")
    return Rows(
        system.agents, system.agent_of.tolist(), system.counter_init.tolist(),
        table("wait_event", "wait_counter", "wait_threshold"),
        table("signal_event", "signal_counter", "signal_amount"),
        table("access_event", *(f"access_{n}" for n in access)),
        table(*(f"initial_{n}" for n in box)), table(*(f"final_{n}" for n in box)),
    )  # fmt: skip


def pairs(judgement: Judgement, number: Callable[[int], int] = lambda e: e) -> set[frozenset[int]]:
    return {frozenset((number(r.first), number(r.second))) for r in judgement.races.races}


def verdict(judgement: Judgement) -> tuple[bool, bool, bool]:
    correct = judgement.dataflow.correct or judgement.races.racy  # what a racy run reads is chance
    return judgement.deadlock is not None, judgement.races.racy, correct


def permuted(rows: Rows, rng: Random) -> Rows:
    """Agents, counters and buffers under other numbers, rows in another order."""
    agent, counter = list(range(rows.agents)), list(range(len(rows.init)))
    rng.shuffle(agent)
    rng.shuffle(counter)
    init = [0] * len(rows.init)
    for old, new in enumerate(counter):
        init[new] = rows.init[old]
    return Rows(
        rows.agents,
        [agent[a] for a in rows.agent],
        init,
        rng.sample([(e, counter[c], t) for e, c, t in rows.waits], len(rows.waits)),
        rng.sample([(e, counter[c], n) for e, c, n in rows.signals], len(rows.signals)),
        [(e, b + 5, *rest) for e, b, *rest in rows.accesses],
        [(b + 5, *rest) for b, *rest in rows.initial],
        [(b + 5, *rest) for b, *rest in rows.final],
    )


def subtiled(rows: Rows, rng: Random) -> Rows:
    """Every access of more than one byte as two that meet somewhere inside."""
    accesses: list[Row] = []
    for e, b, lo, hi, *rest in rows.accesses:
        middle = rng.randint(lo + 1, hi - 1) if hi - lo > 1 else hi
        accesses += [(e, b, a, z, *rest) for a, z in ((lo, middle), (middle, hi)) if a < z]
    return replace(rows, accesses=accesses)


@pytest.mark.parametrize("change", [permuted, subtiled])
def test_the_verdict_does_not_depend_on_names_and_tiles(change: Callable[[Rows, Random], Rows]) -> None:
    rng = Random(21)
    for _ in range(SYSTEMS):
        system = random_system(rng)
        mine = judge(system, limit=None)
        variant, ids = change(rows_of(system), rng).system()
        back = {new: old for old, new in enumerate(ids)}
        other = judge(variant, limit=None)
        assert verdict(mine) == verdict(other)
        assert pairs(mine) == pairs(other, back.__getitem__)


def test_splitting_an_event_before_its_signals_changes_nothing() -> None:
    rng = Random(22)
    for _ in range(SYSTEMS):
        system = random_system(rng)
        rows = rows_of(system)
        split = rng.randrange(system.events)
        agent = list(rows.agent)
        # the new event is listed right behind the one it continues, so that its agent runs it next
        place = {e: e + (e > split) for e in range(system.events)}
        agent.insert(split + 1, rows.agent[split])
        variant, _ = Rows(
            rows.agents, agent, rows.init,
            [(place[e], *rest) for e, *rest in rows.waits],
            [(split + 1 if e == split else place[e], *rest) for e, *rest in rows.signals],
            [(place[e], *rest) for e, *rest in rows.accesses],
            rows.initial, rows.final,
        ).system()  # fmt: skip
        mine, other = judge(system, limit=None), judge(variant, limit=None)
        assert verdict(mine) == verdict(other) and len(pairs(mine)) == len(pairs(other))


def test_one_more_wait_never_adds_a_race_and_one_less_never_a_deadlock() -> None:
    rng, changed = Random(23), 0
    for _ in range(SYSTEMS):
        system = random_system(rng)
        rows = rows_of(system)
        mine = judge(system, limit=None)
        wait = (rng.randrange(system.events), rng.randrange(system.counters), rng.randint(1, 3))
        more = judge(replace(rows, waits=[*rows.waits, wait]).system()[0], limit=None)
        assert pairs(more) <= pairs(mine)
        assert more.deadlock is not None or mine.deadlock is None
        if rows.waits:
            dropped = rng.randrange(len(rows.waits))
            less = judge(replace(rows, waits=rows.waits[:dropped] + rows.waits[dropped + 1 :]).system()[0], limit=None)
            assert pairs(less) >= pairs(mine)
            assert less.deadlock is None or mine.deadlock is not None
            changed += verdict(less) != verdict(mine)
        changed += verdict(more) != verdict(mine)
    assert changed > SYSTEMS // 10


def test_rows_survive_the_round_trip() -> None:
    system = random_system(Random(24))
    copy, ids = rows_of(system).system()
    assert ids == list(range(system.events))
    assert all(np.array_equal(getattr(copy, n), getattr(system, n)) for n in ("agent_first", "access_lo", "wait_first"))
