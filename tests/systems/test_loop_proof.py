"""Certificates of kernels with an open loop: every SAFE one has one, and nothing else is accepted."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from amk.cli import main
from amk.judges.flat_checker import Verdict
from amk.systems import LoopSystem
from amk.systems.loop_certificate import loop_certificate
from amk.systems.loop_proof.check import check
from amk.systems.loop_proof.numbers import MOST_LAPS, Refused, number
from amk.systems.loop_writer import document_of
from amk.systems.open_loop import judged_loops
from amk.systems.verdict import judged
from tests.systems.long_forgeries import attack
from tests.systems.random_loop_rules import random_loop_rules
from tests.systems.test_loops import SAFE

TILE = 1024


def tma(slots: int = 2, warps: int = 1, free: int = 0, expected: int = TILE) -> LoopSystem:
    """Bulk loads into slots with full and empty barriers; free: by how much the parity of `empty` is wrong."""
    sys = LoopSystem("tma", count="tiles")
    ring = sys.buffer("ring", slots * TILE)
    full, empty = sys.mbarriers("full", slots), sys.mbarriers("empty", slots, warps)
    with sys.agent("producer") as p, p.loop() as k:
        slot = k % slots * TILE
        p.wait_parity(empty[k % slots], (k // slots + 1 + free) % 2)
        p.expect(full[k % slots], expected)
        p.load(None, (ring, slot, slot + TILE), full[k % slots], value=("tile", k))
    for n in range(warps):
        with sys.agent(f"consumer {n}") as c, c.loop() as k:
            slot = k % slots * TILE
            c.wait_parity(full[k % slots], k // slots % 2)
            c.read(ring, slot, slot + TILE, value=("tile", k))
            c.arrive(empty[k % slots])
    return sys


def stores(slots: int = 2, left: int = 1, fence: bool = True) -> LoopSystem:
    """Tiles leave through bulk stores; left: groups that need not have been read when a slot is written again."""
    sys = LoopSystem("stores")
    ring, out = sys.buffer("ring", slots * TILE), sys.buffer("out", 1 << 40)
    with sys.agent("warp") as w, w.loop() as k:
        slot = k % slots * TILE
        w.wait_group(left, read=True)
        w.write(ring, slot, slot + TILE, value=("tile", k))
        if fence:
            w.fence_async()
        w.store((ring, slot, slot + TILE), (out, k * TILE, k * TILE + TILE), value=("tile", k))
        w.commit()
    return sys


def meet(only_arrives: bool = True, second: bool = True) -> LoopSystem:
    """A named barrier at which one only arrives, and one at which both meet."""
    sys = LoopSystem("meet")
    data, ready, done = sys.buffer("data", 64), sys.barrier("ready", 2), sys.barrier("done", 2)
    with sys.agent("giver") as g, g.loop() as k:
        g.write(data, 0, 64, value=("turn", k))
        g.arrive(ready)
        if second:
            g.sync(done)
    with sys.agent("taker") as t, t.loop() as k:
        t.sync(ready)
        t.read(data, 0, 64, value=("turn", k))
        if second:
            (t.arrive if only_arrives else t.sync)(done)
    return sys


def checked(system: LoopSystem) -> Verdict:
    document = document_of(system)
    evidence = loop_certificate(judged_loops(system), document)
    return check(document.model_dump(mode="json"), json.loads(json.dumps(evidence)))


RIGHT = [tma(1), tma(2, 2), stores(), stores(1, 0), meet(), meet(False)]
WRONG = [
    (tma(free=1), "AMK", "slots that are not empty yet"),
    (tma(expected=TILE // 2), "AMK", "bytes that nobody expects"),
    (stores(left=2), "AMK302", "a slot that is still read"),
    (stores(fence=False), "AMK507", "no proxy fence"),
    (meet(second=False), "AMK", "no way back"),
]


@pytest.mark.turns(4)
@pytest.mark.parametrize("system", [*RIGHT, *SAFE], ids=lambda s: s.name)
def test_what_is_safe_has_a_certificate_that_is_accepted(system: LoopSystem) -> None:
    assert judged_loops(system).verdict == "SAFE", judged_loops(system)
    assert checked(system).accepted


@pytest.mark.parametrize(("system", "code", "why"), WRONG, ids=[why for *_, why in WRONG])
def test_twins_are_unsafe(system: LoopSystem, code: str, why: str) -> None:
    verdict = judged_loops(system)
    assert verdict.verdict == "UNSAFE" and verdict.diagnostics[0].code.startswith(code), (why, verdict)


def moving() -> LoopSystem:
    """Every lap reads another tile, of which 100 hold something."""
    sys = LoopSystem("moving")
    data = sys.buffer("data", 1 << 30)
    sys.initial(data, 0, 1600, "x")
    with sys.agent("a") as a, a.loop() as k:
        a.read(data, k * 16, k * 16 + 16, value="x")
    return sys


def starting() -> LoopSystem:
    """One starts the others when a counter is as high as the number of laps; it begins at 30."""
    sys = LoopSystem("starting")
    count, go = sys.counter("count", init=30), sys.counter("go")
    with sys.agent("starter") as starter:
        with starter.loop():
            pass
        starter.wait(count, sys.laps)
        starter.signal(go)
    with sys.agent("worker") as worker, worker.loop():
        worker.wait(go, 1)
        worker.signal(count)
    return sys


@pytest.mark.parametrize(("system", "laps"), [(moving(), 120), (starting(), 40)], ids=["moving", "starting"])
def test_what_goes_wrong_beyond_all_unrollings_is_not_safe(system: LoopSystem, laps: int) -> None:
    assert not judged(system.unrolled(laps).flat()).safe
    assert judged_loops(system).verdict == "UNKNOWN"


def test_forged_certificates_are_refused() -> None:
    found = attack(0, flat=12, loops=2)
    assert not found["differences"] and found["offered"] > 40


@pytest.mark.turns(4)
@pytest.mark.parametrize("changed", ["values", "laps", "rests", "base", "open", "claims", "runs"])
def test_changed_and_malformed_certificates_are_refused(changed: str) -> None:
    document = document_of(tma(1))
    plain, evidence = document.model_dump(mode="json"), loop_certificate(judged_loops(tma(1)), document)
    for bad in (None, [], {"1": {}}, 0, -1, "x", [[1]], {"0": 1}):
        forged = copy.deepcopy(evidence)
        if changed == "open":
            forged["open"] = bad
        elif changed in ("claims", "runs"):
            forged["cases"][0]["rests"][0][changed] = bad
        else:
            forged["cases"][0][changed] = bad
        assert not check(plain, json.loads(json.dumps(forged))).accepted, bad
    for other in (tma(1, free=1), tma(2), stores()):
        assert not check(document_of(other).model_dump(mode="json"), evidence).accepted


@pytest.mark.turns(12)
def test_random_kernels_are_safe_only_if_longer_unrollings_are() -> None:
    counts: Counter[str] = Counter()
    for seed in range(10):
        system = random_loop_rules(Random(seed))
        verdict = judged_loops(system)
        counts[verdict.verdict] += 1
        if verdict.safe:
            assert all(judged(system.unrolled(verdict.laps + more).flat()).safe for more in (1, 2, 9)), seed
        assert not verdict.safe or seed % 4 or checked(system).accepted
    assert counts["SAFE"] > 2 and counts["UNSAFE"] > 2 and counts["UNKNOWN"] < 3, counts


def test_numbers_repeat_as_their_shape_says() -> None:
    rng, tried = Random(4), 0
    for _ in range(300):
        text = "k"
        for _ in range(rng.randint(1, 4)):
            n = rng.randint(1, 6)
            text = rng.choice(
                (f"({text} + {n})", f"({text} * {n})", f"({text} % {n})", f"({text} // {n})", f"({n} - {text})")
            )
        try:
            value = number(text, {}, "k")
            period, rate = value.shape
            assert [value.at(k) for k in range(MOST_LAPS)]
        except Refused:
            continue  # it repeats late, or divides what may be negative
        tried += 1
        assert period <= MOST_LAPS
        assert all(value.at(k + period) == value.at(k) + rate * period for k in range(2 * period + 3)), text
        assert all(value.at(k) == eval(text, {"k": k}) for k in range(20))
    assert tried > 150


def test_it_works_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, proof = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "proof.json"
    tma(1).save(good)
    tma(1, free=1).save(bad)
    assert main(["verify", str(good), "--certificate", str(proof)]) == 0
    assert main(["check-certificate", str(good), str(proof)]) == 0
    assert main(["check-certificate", str(bad), str(proof)]) == 3
    assert "ACCEPTED" in capsys.readouterr().out
