"""The composed check against the flat one, and the rules that look right and are not (section 11 of the theory).

A slice of the recorded run (`tests.validator.long_checks two-level`).
"""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from amk.adversary.edits import Edit, apply, find, named
from amk.adversary.subjects import subject
from amk.adversary.system_builder import SystemBuilder
from amk.judges.explore import explore
from amk.schedule_ir.codec import parse_schedule
from amk.validator.memory.flat import judge
from amk.validator.order import two_levels as inter_cta
from amk.validator.order.two_levels import LocalOrder
from amk.validator.program.system import I64, System
from amk.validator.verify import verify
from tests.validator.ring_system import ring_system
from tests.validator.two_level import awaited, compare, random_two_level, schedule_of, signal, step

SYSTEMS = 400


def wrong(seed: int, count: int) -> list[str]:
    rng = Random(seed)
    return [line for _ in range(count) for line in compare(random_two_level(rng)).wrong]


@pytest.mark.turns(4)
def test_composed_is_flat_on_random_two_level_systems() -> None:
    rng = Random(11)
    found = [compare(random_two_level(rng)) for _ in range(SYSTEMS)]
    assert not [f for f in found if f.wrong]
    assert sum(f.live for f in found) > SYSTEMS // 2 and any(not f.live for f in found)
    assert sum(f.partial for f in found) > SYSTEMS // 10 and any(f.implied for f in found)


def test_wrong_rule_one_chain_per_worker_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(order: LocalOrder, events: I64) -> list[I64]:
        events = np.unique(events)
        return [events[np.argsort(order.run.position[events], kind="stable")]] if len(events) else []

    monkeypatch.setattr(inter_cta, "warp_orders", merged)
    assert wrong(12, 60)


@pytest.mark.turns(4)
def test_wrong_rule_without_local_prefixes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Barriers, and the back-pressure of rings, hold one agent of a worker behind another."""
    monkeypatch.setattr(inter_cta.InterCtaSystem, "_add_prefixes", lambda self, g: None)
    assert wrong(13, 60)


def test_wrong_rule_local_past_of_a_wait_that_is_not_conjunctive_is_caught() -> None:
    """A barrier that two of three warps complete: warp 0 needs one of the others, and both wait for what it gives next.

    One worker alone guarantees nothing about which, so its prefixes would call this deadlock live.
    """
    base = subject("fenced", 2, 2, 1).document
    fewer = apply(base, [Edit("replace", (*find(base, "barrier"), "op", "agents"), 1)])[0]
    verdict = verify(parse_schedule(json.dumps(fewer).encode(), "fewer")[0])
    assert [d.code for d in verdict.diagnostics] == ["AMK404"]
    held = [step({"op": "wait", "role": f"w{w}"}, waits=[awaited("g0", 1)]) for w in (1, 2)]
    meet = [step({"op": "barrier", "role": "all", "id": 1, "agents": agents}) for agents in (2, 3)]
    give = step({"op": "signal", "role": "w0"}, signals=[signal("g0", 1)])
    helped = compare(schedule_of([[*held, meet[0], give], [give]]))
    assert helped.live and all("composed False" in line for line in helped.wrong)
    assert compare(schedule_of([[*held, meet[0], give], []])).wrong
    assert compare(schedule_of([[*held, meet[1], give], []])).wrong == ()


def _prefetch(at_issue: bool) -> System:
    """A copy reads what another SM writes; it runs when it is issued, its consumer waits for the write."""
    build = SystemBuilder()
    ready, full = build.counter(), build.counter()
    write = build.event(build.agent("writer"))
    build.write(write, 0, 0, 1)
    build.signal(write, ready)
    copy = build.event(build.agent("copy"))
    consume = build.event(build.agent("consumer"))
    build.read(copy if at_issue else consume, 0, 0, 1)
    build.signal(copy, full)
    build.wait(consume, full, 1)
    build.wait(consume, ready, 1)
    return build.build()


def test_wrong_rule_a_prefetch_placed_at_its_consumer_is_caught() -> None:
    assert judge(_prefetch(at_issue=True)).races.racy and explore(_prefetch(at_issue=True)).races
    assert judge(_prefetch(at_issue=False)).safe
    base = subject("fenced", 2, 2, 1).document
    mutable = apply(base, [Edit("replace", (*named(base, "buffers", "weights"), "role"), "scratch")])[0]
    assert verify(parse_schedule(json.dumps(mutable).encode(), "mutable")[0]).diagnostics[0].code == "AMK507"


def test_wrong_rule_a_ring_without_back_pressure_is_caught() -> None:
    assert judge(ring_system(2, 5)).safe
    early = ring_system(2, 5, drain_first=False)
    assert judge(early).races.racy and explore(early).races


def _two_copies(fifo: bool) -> System:
    """Two copies land on one slot; the reader waits for both."""
    build = SystemBuilder()
    full = build.counter()
    engine = build.agent("engine")
    for chunk in range(2):
        copy = build.event(engine if fifo or chunk == 0 else build.agent("engine too"))
        build.write(copy, 0, 0, 1, value=chunk)
        build.signal(copy, full)
    read = build.event(build.agent("reader"))
    build.wait(read, full, 2)
    build.read(read, 0, 0, 1, value=1)
    return build.build()


def test_wrong_rule_a_copy_engine_in_order_is_caught() -> None:
    assert judge(_two_copies(fifo=True)).safe
    assert judge(_two_copies(fifo=False)).races.racy and explore(_two_copies(fifo=False)).races
    assert ring_system(2, 5).agents == 1 + 5
