"""Shared memory and mbarriers of a CTA are there from its start to its end, for its cluster and its kernel alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

import amk
from amk.report.diagnostic import AmkError
from amk.systems import System
from amk.systems.document import to_json
from amk.systems.proof import check
from amk.systems.verdict import judged
from tests.systems.rule_runs import Rules
from tests.systems.test_rule_proof import accepted


def hand_over(meet: bool = True, leave: bool = True, tiles: int = 2, load: bool = False) -> System:
    """CTA 0 writes tiles into the memory of CTA 1, which arrives at a barrier of CTA 0 when it has read them. meet:
    both have started. leave: nobody ends before the other. load: bulk loads bring the tiles."""
    sys = System("hand-over")
    tile, all_ = sys.shared("tile", 16, cta=1), sys.barrier("all", 2, "cluster")
    full, empty = sys.mbarrier("full", scope="cluster"), sys.mbarrier("empty", scope="cluster")
    with sys.agent("giver", cta=0) as g, sys.agent("taker", cta=1) as t:
        for agent in (g, t) if meet else ():
            agent.sync(all_)
        for k in range(tiles):
            if k:
                g.wait_parity(empty, (k - 1) % 2)
            if load:
                g.expect(full, 16)
                g.load(None, (tile, 0, 16), full, value=k)
            else:
                g.write(tile, 0, 16, value=k)
                g.arrive(full)
            t.wait_parity(full, k % 2)
            t.read(tile, 0, 16, value=k)
            t.arrive(empty)
        for agent in (g, t) if leave else ():
            agent.sync(all_)
    return sys


@pytest.mark.parametrize("load", [False, True])
def test_nobody_reaches_into_a_cta_before_its_start_or_behind_its_end(load: bool) -> None:
    assert amk.verify(hand_over(load=load)).safe and accepted(hand_over(load=load).flat())
    early, late = amk.verify(hand_over(meet=False, load=load)), amk.verify(hand_over(leave=False, load=load))
    assert early.verdict == "UNSAFE" and "start of CTA 1" in early.explain(), early
    assert late.verdict == "UNSAFE" and "end of CTA 0" in late.explain() and "taker" in late.explain(), late


def test_every_interleaving_says_the_same() -> None:
    for meet, leave in ((True, True), (False, True), (True, False)):
        document = to_json(hand_over(meet, leave, tiles=2).flat())
        assert (not Rules(document, 60_000).wrong(all_of_it=False)) == (meet and leave)


def test_a_cta_that_waits_for_the_start_of_another_may_reach_into_it() -> None:
    """Any signal of the other CTA says that it has started, as long as it does not end."""
    sys = System()
    tile, ready, done = sys.shared("tile", 16, cta=1), sys.counter("ready"), sys.counter("done")
    with sys.agent("owner", cta=1) as owner, sys.agent("guest", cta=0) as guest:
        owner.signal(ready)
        guest.wait(ready, 1)
        guest.write(tile, 0, 16, value="x")
        guest.signal(done)
        owner.wait(done, 1)
        owner.read(tile, 0, 16, value="x")
    assert amk.verify(sys).safe


def of_two_kernels(scope: str) -> System:
    sys = System("two kernels")
    data, met = sys.buffer("data", 16), sys.counter("met", scope)  # type: ignore[arg-type]
    with sys.kernel("first") as first:
        giver = first.agent("giver")
        giver.write(data, 0, 16, value=1)
        giver.signal(met)
    with sys.kernel("second") as second:
        taker = second.agent("taker")
        taker.wait(met, 1)
        taker.read(data, 0, 16, value=1)
    return sys


def test_ctas_of_two_kernels_are_two() -> None:
    assert amk.verify(of_two_kernels("gpu")).safe
    for scope in ("cta", "cluster"):
        assert amk.verify(of_two_kernels(scope)).diagnostics[0].code == "AMK505"


def test_a_task_is_in_no_agent_s_cta() -> None:
    for scope in ("cta", "cluster"):
        sys = System()
        done, tasks = sys.counter("done", scope), sys.queue("tasks", 1)  # type: ignore[arg-type]
        with tasks.task("task") as task:
            task.signal(done)
        with sys.agent("warp") as warp:
            warp.wait(done, 1)
        assert amk.verify(sys).diagnostics[0].code == "AMK505"


def later_kernel(sys: System) -> None:
    with sys.kernel("first") as first:
        memory = first.shared("tile", 16)
        first.agent("giver").write(memory, 0, 16, value=1)
    with sys.kernel("second", after=first) as second:
        second.agent("taker").read(memory, 0, 16, value=1)


def other_cluster(sys: System) -> None:
    sys.agent("warp", cluster=1).read(sys.shared("tile", 16), 0, 16)


def task(sys: System) -> None:
    memory, tasks = sys.shared("tile", 16), sys.queue("tasks", 1)
    with tasks.task("task") as one:
        one.write(memory, 0, 16)


@pytest.mark.parametrize("call", [later_kernel, other_cluster, task])
def test_memory_that_cannot_be_reached_is_refused(call: Callable[[System], None]) -> None:
    with pytest.raises(AmkError, match="AMK505: tile is shared memory of another cluster or kernel"):
        call(System())


def test_shared_memory_of_a_kernel_s_cta() -> None:
    sys = System()
    with sys.kernel("first") as first:
        memory, agent = first.shared("tile", 16, cta=1), first.agent("warp", cta=1)
        agent.write(memory, 0, 16, value=1)
        agent.read(memory, 0, 16, value=1)
    assert amk.verify(sys).safe


def test_an_mbarrier_lies_in_shared_memory() -> None:
    with pytest.raises(AmkError, match="AMK005: an mbarrier is for one CTA or one cluster, not 'gpu'"):
        System().mbarrier("bar", scope="gpu")


@pytest.mark.parametrize("calls", ["aaw", "awaaw", "aww", "aw", "awaw", "awa"])
def test_at_the_barrier_of_a_cluster_arriving_and_waiting_take_turns(calls: str) -> None:
    """PTX: each thread arrives once before the barrier completes."""
    turns = all(one != other for one, other in pairwise(calls))
    for scope in ("cluster", "cta"):
        sys = System()
        bar = sys.barrier("bar", 1, scope)  # type: ignore[arg-type]
        with sys.agent("warp") as warp:
            for call in calls:
                warp.arrive(bar) if call == "a" else warp.wait_others(bar)
        flat = sys.flat()
        right = turns or scope == "cta"
        assert judged(flat).verdict == ("SAFE" if right else "UNKNOWN")
        assert accepted(flat) if right else "take turns" in judged(flat).explain()


def test_the_check_of_certificates_asks_for_turns_itself() -> None:
    """The evidence of the same calls at CTA scope, offered for the barrier of a cluster."""
    from amk.systems.flat_certificate import certificate

    sys = System()
    bar = sys.barrier("bar", 1, "cta")
    with sys.agent("warp") as warp:
        warp.arrive(bar)
        warp.arrive(bar)
        warp.wait_others(bar)
    flat = sys.flat()
    document, evidence = to_json(flat), certificate(flat)
    assert check(document, evidence).accepted
    document["orders"]["scope"] = [1 for _ in document["orders"]["scope"]]
    found = check(document, evidence)
    assert not found.accepted and "arrives again" in found.reason
