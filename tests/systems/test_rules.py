"""Barriers by phase, flags, bulk copies and proxies: right kernels are SAFE, their twins with one mistake are not."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest

import amk
from amk.cli import main
from amk.report.diagnostic import AmkError
from amk.systems import System
from amk.systems.document import parse_system, schema, to_json, written
from amk.systems.run_witness import replay_run
from amk.systems.verdict import judged
from tests.systems import long_rules
from tests.systems.random_rules import Made, random_rules
from tests.systems.rule_runs import Rules, TooMany

MORE = int(os.environ.get("AMK_SYSTEMS", "1"))
SYSTEMS, OTHERS = 80 * MORE, 300 * MORE
LIMIT = 40_000
"""States of one system beyond which it is left out."""


def tma_ring(
    parity: int = 1, expect: int = 64, arrivals: int = 1, fence: bool = True, read: bool = True, last: bool = True
) -> System:
    """A producer warp fills another warp's ring by TMA; tiles are written back by bulk stores."""
    slots, tiles, sys = 2, 5, System("tma ring")
    smem, out = sys.shared("smem", slots * 64), sys.shared("out", 64)
    full = [sys.mbarrier(f"full {s}") for s in range(slots)]
    empty = [sys.mbarrier(f"empty {s}", arrivals) for s in range(slots)]
    result = sys.buffer("result", tiles * 64)
    with sys.agent("producer") as p, sys.agent("consumer") as c:
        for k in range(tiles):
            s, phase, box = k % slots, k // slots % 2, (smem, k % slots * 64, k % slots * 64 + 64)
            p.wait_parity(empty[s], phase ^ parity)
            p.expect(full[s], expect)
            p.load(None, box, full[s], value=k)
            c.wait_parity(full[s], phase)
            c.read(*box, value=k)
            c.arrive(empty[s])
            if read:
                c.wait_group(0, read=True)
            c.write(out, 0, 64, value=(k, "result"))
            if fence:
                c.fence_async()
            c.store((out, 0, 64), (result, k * 64, k * 64 + 64), value=(k, "result"))
            c.commit()
        if last:
            c.wait_group(0)
    return sys


def cluster(scope: Any = "cluster", wait: bool = True, meet: bool = True) -> System:
    """Each of two CTAs writes into the other's shared memory and arrives there; meet: both have started before; wait:
    nobody leaves early."""
    sys = System("pair")
    memory = [sys.shared(f"smem {n}", 16, cta=n) for n in range(2)]
    full = [sys.mbarrier(f"full {n}", scope=scope) for n in range(2)]
    leave = sys.barrier("leave", 2, "cluster")
    for n in range(2):
        with sys.agent(f"cta {n}", cta=n) as w:
            if meet:
                w.sync(leave)
            w.write(memory[1 - n], 0, 16, value=n)
            w.arrive(full[1 - n])
            if n == 0:
                w.wait_parity(full[0], 0)
                w.read(memory[0], 0, 16, value=1)
            if wait:
                w.sync(leave)
    return sys


def named(partial: bool = True, early: bool = False) -> System:
    """bar.arrive of the producers, bar.sync of the consumer; early: no second barrier before the next lap."""
    sys = System("named")
    data, full, free = sys.buffer("data", 32), sys.barrier("full", 3), sys.barrier("free", 3)
    for n in range(2):
        with sys.agent(f"producer {n}") as p:
            for k in range(2):
                p.write(data, n * 16, n * 16 + 16, value=k)
                if partial:
                    p.arrive(full)
                if not early and k == 0:
                    p.sync(free)
    with sys.agent("consumer") as c:
        for k in range(2):
            c.sync(full)
            c.read(data, 0, 32, value=k)
            if not early and k == 0:
                c.arrive(free)
    return sys


def reset(order: str = "after", scope: Any = "sys") -> System:
    """A flag between two GPUs that is set and reset; order: when the taker resets it, before or after it has read."""
    sys = System("reset")
    data, flag = sys.buffer("data", 16), sys.flag("flag", scope)
    with sys.agent("giver", gpu=0) as g, sys.agent("taker", gpu=1) as t:
        for k in range(2):
            g.wait_equal(flag, 0)
            g.write(data, 0, 16, value=k)
            g.set(flag, 1)
            t.wait_equal(flag, 1)
            if order == "before":
                t.set(flag, 0)
            t.read(data, 0, 16, value=k)
            if order == "after":
                t.set(flag, 0)
    return sys


def unset(value: int = 0) -> System:
    """A flag that nobody sets; value: what is waited for."""
    sys = System("unset")
    data, flag = sys.buffer("data", 16), sys.flag("flag", "sys")
    with sys.agent("taker", gpu=1) as t:
        t.wait_equal(flag, value)
        t.write(data, 0, 16, value=0)
    return sys


def initialised(meet: bool = True, fence: bool = True) -> System:
    """A warp initialises the barrier of its load; meet: the other polls behind a barrier; fence: of the proxy."""
    sys = System("initialised")
    data, full, met = sys.shared("data", 64), sys.mbarrier("full"), sys.barrier("met", 2)
    with sys.agent("producer") as p, sys.agent("consumer") as c:
        p.init(full)
        if fence:
            p.fence_async()
        if meet:
            p.sync(met)
            c.sync(met)
        p.expect(full, 64)
        p.load(None, (data, 0, 64), full, value=1)
        c.wait_parity(full, 0)
        c.read(data, 0, 64, value=1)
    return sys


def queue(workers: int = 2, shared: bool = False, backwards: bool = False) -> System:
    """Tasks of a queue; shared: all write one tile; backwards: the first two wait for the last."""
    sys, tiles = System("queue"), 4
    out, ready, tasks = sys.buffer("out", tiles * 16), sys.counter("ready"), sys.queue("tasks", workers)
    for k in range(tiles):
        with tasks.task(f"tile {k}") as t:
            if backwards and k < 2:
                t.wait(ready, 1)
            lo = 0 if shared else k * 16
            t.write(out, lo, lo + 16)
            if k == tiles - 1:
                t.signal(ready)
    return sys


def kernels(after: bool = True, waits: bool = True) -> System:
    """Two kernels on one buffer: in one stream, or with programmatic dependent launch."""
    sys = System("kernels")
    data = sys.buffer("data", 16)
    with sys.kernel("first") as first:
        first.agent("first").write(data, 0, 16, value=1)
    with sys.kernel("second", after=first if after else None) as second:
        agent = second.agent("second")
        if waits and not after:
            agent.wait_kernel(first)
        agent.read(data, 0, 16, value=1)
    return sys


RIGHT: list[Callable[[], System]] = [
    tma_ring, cluster, named, reset, queue, kernels, lambda: kernels(after=False),
    lambda: queue(workers=3, backwards=True), lambda: queue(workers=1), initialised, unset,
]  # fmt: skip
WRONG: dict[str, tuple[Callable[[], System], str, str]] = {
    "the producer starts with the wrong parity": (lambda: tma_ring(parity=0), "AMK201", "empty 0 is in phase 0"),
    "more bytes expected than copied": (lambda: tma_ring(expect=128), "AMK201", "0 of 1 arrivals and 64 bytes"),
    "fewer bytes expected than copied": (lambda: tma_ring(expect=32), "AMK201", "to expect 32 bytes that came"),
    "empty counts two arrivals": (lambda: tma_ring(arrivals=2), "AMK201", "still needs 1 of 2 arrivals"),
    "no proxy fence before the store": (lambda: tma_ring(fence=False), "AMK507", "`fence.proxy.async`"),
    "the tile is overwritten while it is stored": (lambda: tma_ring(read=False), "AMK302", "out[0:64]"),
    "the CTA ends while its store reads": (lambda: tma_ring(last=False), "AMK302", "end of CTA 0"),
    "an arrival at another CTA of scope cta": (lambda: cluster(scope="cta"), "AMK505", "has scope cta"),
    "a barrier is polled before it is there": (lambda: initialised(meet=False), "AMK302", "mbarrier full"),
    "a load of a barrier without a proxy fence": (lambda: initialised(fence=False), "AMK507", "mbarrier full"),
    "a CTA leaves before the other writes into it": (lambda: cluster(wait=False), "AMK302", "end of CTA"),
    "a CTA reaches into one that has not started": (lambda: cluster(meet=False), "AMK302", "start of CTA"),
    "a warp never arrives": (lambda: named(partial=False), "AMK20", "still needs 2 of 3 arrivals"),
    "a barrier does not keep the next lap away": (lambda: named(early=True), "AMK302", "data[0:16]"),
    "reset before it is read": (lambda: reset(order="before"), "AMK302", "data[0:16]"),
    "a flag of another GPU at scope gpu": (lambda: reset(scope="gpu"), "AMK505", "has scope gpu"),
    "a flag that nobody sets": (lambda: unset(1), "AMK202", "waits for flag == 1; flag is 0"),
    "tasks share a tile": (lambda: queue(shared=True), "AMK301", "out[0:16]"),
    "all workers wait for a task behind them": (lambda: queue(workers=2, backwards=True), "AMK201", "tile 3"),
    "a dependent launch that does not wait": (lambda: kernels(after=False, waits=False), "AMK302", "data[0:16]"),
}  # fmt: skip
VALIDATOR = jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("make", RIGHT)
def test_right_kernels_are_safe(make: Callable[[], System]) -> None:
    verdict = amk.verify(make())
    assert verdict.verdict == "SAFE", verdict


@pytest.mark.parametrize("name", WRONG)
def test_one_mistake_is_found_and_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, code, text = WRONG[name]
    verdict = amk.verify(make())
    assert verdict.verdict == "UNSAFE" and verdict.diagnostics[0].code.startswith(code), verdict
    assert text in verdict.explain() and "test_rules.py" in verdict.explain()
    file, witness = tmp_path / "system.json", tmp_path / "witness.json"
    file.write_text(written(verdict.system))
    VALIDATOR.validate(json.loads(file.read_text()))
    assert main(["verify", str(file), "--witness", str(witness), "--format", "concise"]) == 1
    if verdict.witness_kind is not None:
        assert main(["replay", str(witness)]) == 0
        assert "CONFIRMED" in capsys.readouterr().out


def test_who_has_arrived_is_told_where_an_arrival_is_missing() -> None:
    sys = System()
    done = sys.mbarrier("done", 2)
    with sys.agent("waits") as waits, sys.agent("arrives") as arrives, sys.agent("forgets") as forgets:
        waits.wait_parity(done, 0)
        arrives.arrive(done)
        forgets.fence_async()
    assert "still needs 1 of 2 arrivals (arrives arrived)" in amk.verify(sys).explain()


HELP = {
    "the producer starts with the wrong parity": "with the other parity",
    "more bytes expected than copied": "expect 64 bytes, as many as come",
    "fewer bytes expected than copied": "expect 64 bytes, as many as come",
    "empty counts two arrivals": "count 1 arrivals instead of 2",
    "no proxy fence before the store": "execute `fence.proxy.async` behind the write",
}


@pytest.mark.parametrize("name", HELP)
def test_a_change_that_was_tried_is_said(name: str) -> None:
    """With it the system is SAFE, and it is what was broken."""
    advice = amk.verify(WRONG[name][0]()).diagnostics[0].advice
    assert HELP[name] in advice and "with this change the system is SAFE" in advice


def test_who_waits_without_having_arrived_is_unknown_by_name() -> None:
    sys = System()
    meet = sys.barrier("meet", 1)
    with sys.agent("first") as first, sys.agent("second") as second:
        first.sync(meet)
        second.wait_others(meet)
    verdict = amk.verify(sys)
    assert verdict.verdict == "UNKNOWN" and "second, event 0" in verdict.explain()


def test_a_poll_by_parity_is_no_turn_at_the_barrier_of_a_cluster() -> None:
    for turns in (True, False):
        sys = System()
        meet = sys.barrier("meet", 2, "cluster")
        with sys.agent("first") as first, sys.agent("second") as second:
            first.sync(meet)
            first.sync(meet)
            second.arrive(meet)
            (second.wait_others(meet) if turns else second.wait_parity(meet, 0))
            second.sync(meet)
        verdict = amk.verify(sys)
        assert verdict.verdict == ("SAFE" if turns else "UNKNOWN"), verdict


def test_bytes_that_are_expected_too_late_end_a_phase_too_early() -> None:
    """Whoever of two comes first: the run that is looked at first shows nothing."""
    for helps in (True, False):
        sys = System()
        data, full = sys.buffer("data", 16), sys.mbarrier("full")
        with sys.agent("helper") as helper, sys.agent("producer") as p, sys.agent("consumer") as c:
            (helper if helps else p).expect(full, 16, arrives=False)
            p.arrive(full)
            p.load(None, (data, 0, 16), full, value=1)
            c.wait_parity(full, 0)
            c.read(data, 0, 16, value=1)
        assert amk.verify(sys).verdict == ("UNSAFE" if helps else "SAFE")


def test_arrivals_may_not_reach_over_the_end_of_a_phase() -> None:
    sys = System()
    bar = sys.mbarrier("bar", 2)
    with sys.agent("a") as a, sys.agent("b") as b, sys.agent("c") as c:
        a.arrive(bar)
        b.arrive(bar)
        c.arrive(bar, 2)
    assert amk.verify(sys).diagnostics[0].code == "AMK404"


def test_what_a_file_holds_is_read_back() -> None:
    for make in RIGHT:
        flat = make().flat()
        document = to_json(flat)
        assert to_json(parse_system(json.dumps(document).encode(), "system.json")) == document
    broken = to_json(tma_ring().flat())
    broken["orders"]["phase"] = [0] * len(broken["orders"]["phase"])
    with pytest.raises(AmkError, match="barriers"):
        parse_system(json.dumps(broken).encode(), "system.json")


@pytest.mark.parametrize(
    "call",
    ["p.wait(bar, 1)", "p.signal(bar)", "p.arrive(full)", "p.wait_parity(bar, 2)", "p.arrive(bar, 3)",
     "p.expect(bar, 1 << 20)", "p.init(full)", "p.init(bar); p.init(bar)",
     "p.set(bar, 1)", "p.wait(flag, 1)", "p.expect(bar, 0)", "p.read(data, 0, 4, proxy='tma')"],
)  # fmt: skip
def test_errors_are_at_the_caller_s_line(call: str) -> None:
    sys = System()
    names: dict[str, Any] = {"p": sys.agent("p"), "bar": sys.mbarrier("bar", 2), "full": sys.counter("full")}
    names |= {"flag": sys.flag("flag"), "data": sys.buffer("data", 8)}
    with pytest.raises(AmkError) as error:
        exec(compile("\n" * 6 + call, "kernel.py", "exec"), names)
    (found,) = error.value.diagnostics
    assert found.where is not None and (found.where.file, found.where.line) == ("kernel.py", 7)


def test_random_kernels_get_the_verdict_of_exploration() -> None:
    """Every interleaving of the rules: SAFE shows nothing wrong, UNSAFE something; UNKNOWN is rare."""
    counts: Counter[str] = Counter()
    for seed in range(SYSTEMS):
        verdict = judged(random_rules(Random(seed)).flat())
        try:
            wrong = Rules(json.loads(written(verdict.system)), LIMIT).wrong()
        except TooMany:
            continue
        counts[verdict.verdict] += 1
        assert verdict.safe <= (not wrong) and (verdict.verdict == "UNSAFE") <= bool(wrong), (seed, wrong, verdict)
        if verdict.finding is not None and verdict.finding.run is not None:
            found = verdict.witness_json()
            assert found is not None and replay_run(found, "witness.json")
            assert not found["order"] or not replay_run({**found, "order": found["order"][:-1]}, "witness.json")
    assert min(counts["SAFE"], counts["UNSAFE"]) * 5 > SYSTEMS and counts["UNKNOWN"] * 20 < SYSTEMS, counts


@pytest.mark.turns(4)
def test_random_kernels_agree_in_verdict_certificate_and_witness() -> None:
    """As a slice of `long_rules`, with seeds that no slice has: whatever is SAFE has a certificate that is accepted."""
    counts = long_rules.compared((seed, Made(Random(seed), long_rules.CHANGES)) for seed in range(OTHERS))
    assert not counts["differences"]
    assert min(counts["SAFE"], counts["UNSAFE"]) * 3 > OTHERS and counts["UNKNOWN"] * 8 < OTHERS, counts
