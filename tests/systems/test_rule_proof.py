"""Certificates of systems with barriers by phase, flags and proxies: SAFE ones have one, and no others."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from amk.cli import main
from amk.report.diagnostic import AmkError
from amk.systems import System
from amk.systems.document import parse_system, to_json
from amk.systems.flat_certificate import certificate
from amk.systems.flat_system import FlatSystem
from amk.systems.incidents import load
from amk.systems.machine import ran
from amk.systems.proof import check, filled
from amk.systems.rule_reading import Reading, Refused
from amk.systems.rules import FENCE, GENERIC, PARITY
from amk.systems.verdict import judged
from tests.systems.forging import claims_of, complete, forged, proves
from tests.systems.random_rules import random_rules
from tests.systems.test_rules import RIGHT, WRONG, tma_ring

MORE = int(os.environ.get("AMK_SYSTEMS", "1"))
Json = dict[str, Any]


def accepted(flat: FlatSystem) -> bool:
    document = json.loads(json.dumps(to_json(flat)))
    return check(document, json.loads(json.dumps(certificate(flat)))).accepted


def test_certificates_of_right_kernels_are_accepted() -> None:
    for make in RIGHT:
        assert accepted(make().flat())
    for incident in load().values():
        assert accepted(incident.system(True).flat()), incident.name


def test_certificates_of_random_safe_kernels_are_accepted() -> None:
    tried = 0
    for seed in range(40 * MORE):
        flat = random_rules(Random(seed)).flat()
        if flat.rules is not None and judged(flat).safe:
            assert accepted(flat), seed
            tried += 1
    assert tried > 15


@pytest.mark.parametrize("what", ["parity", "fence"])
def test_a_parity_of_2_and_a_fence_that_touches_memory_mean_nothing(what: str) -> None:
    """A wait for parity 2 passes at once; a write of a proxy fence may be before it or behind it."""
    flat = tma_ring().flat()
    right, block, rules = json.loads(json.dumps(to_json(flat))), flat.block, flat.rules
    assert rules is not None
    evidence = json.loads(json.dumps(certificate(flat)))
    wrong = copy.deepcopy(right)
    if what == "parity":
        row = int(np.flatnonzero((rules.wait == PARITY) & (block.wait_threshold == 0))[0])
        wrong["systems"]["block"]["wait_threshold"][row] = 2
    else:
        event = int(block.access_event[np.flatnonzero(rules.proxy[block.access_event] == GENERIC)[0]])
        wrong["orders"]["proxy"][event] = FENCE
    assert check(right, evidence).accepted and not check(wrong, evidence).accepted
    with pytest.raises(AmkError, match="parity" if what == "parity" else "fence"):
        parse_system(json.dumps(wrong).encode(), "system.json")
    with pytest.raises(Refused, match="parity" if what == "parity" else "fence"):
        Reading(filled(wrong["systems"]["block"]), wrong["orders"], evidence["rules"])


@pytest.mark.parametrize("come", [0, 16])
def test_a_last_phase_may_stay_open_for_bytes_that_never_come(come: int) -> None:
    sys = System("open")
    data, full, last = sys.buffer("data", 16), sys.mbarrier("full"), sys.mbarrier("last", 2)
    with sys.agent("producer") as p, sys.agent("consumer") as c:
        p.write(data, 0, 16, value=1)
        p.arrive(full)
        p.expect(last, 32)
        c.wait_parity(full, 0)
        c.read(data, 0, 16, value=1)
        c.arrive(last)
        if come:
            c.complete(last, come)
    assert accepted(sys.flat())


def meetings(arrives: int, phases: int) -> FlatSystem:
    """One only arrives, ahead of the other as far as it likes: some runs end, in others a phase is missed."""
    sys = System("meetings")
    meet = sys.barrier("meet", 2)
    with sys.agent("ahead") as ahead, sys.agent("other") as other:
        for k in range(phases):
            (ahead.arrive if k < arrives else ahead.sync)(meet)
            other.sync(meet)
    return sys.flat()


def alternating(phases: int, resets: bool) -> FlatSystem:
    """A flag that is set again before the other has seen it, or that is stored to from both sides."""
    sys = System("alternating")
    flag = sys.flag("flag")
    with sys.agent("giver") as giver, sys.agent("taker") as taker:
        for k in range(phases):
            giver.set(flag, 1 + k)
            taker.wait_equal(flag, 1 + k)
            if resets:
                taker.set(flag, 0)
    return sys.flat()


def parities(phases: int) -> FlatSystem:
    """A producer that never waits: the consumer may be two phases late, and blocks."""
    sys = System("parities")
    full = sys.mbarrier("full")
    with sys.agent("producer") as producer, sys.agent("consumer") as consumer:
        for k in range(phases):
            producer.arrive(full)
            consumer.wait_parity(full, k % 2)
    return sys.flat()


def skipping() -> FlatSystem:
    """The second wait means the third phase, and passes in the second: it has the parity of the first."""
    sys = System("skipping")
    full, data = sys.mbarrier("full"), sys.buffer("data", 12)
    with sys.agent("producer") as producer, sys.agent("consumer") as consumer:
        for k in range(3):
            producer.write(data, 4 * k, 4 * k + 4, value=k)
            producer.arrive(full)
        for k in (0, 2):
            consumer.wait_parity(full, 0)
            consumer.read(data, 4 * k, 4 * k + 4, value=k)
    return sys.flat()


def unsafe_systems() -> Iterator[FlatSystem]:
    """Of some only count ranges say that they are: their system of counters is SAFE."""
    yield from (meetings(arrives, phases) for arrives, phases in ((1, 2), (2, 2), (3, 3)))
    yield from (alternating(phases, resets) for phases in (2, 3) for resets in (False, True))
    yield from (parities(phases) for phases in (2, 3, 4))
    yield skipping()
    yield from (make().flat() for make, code, _ in WRONG.values() if code != "AMK505")
    for seed in range(40 * MORE):
        flat = random_rules(Random(1000 + seed)).flat()
        if flat.rules is not None and not judged(flat).safe:
            yield flat


def test_nothing_proves_an_unsafe_kernel() -> None:
    rng, tried, refused = Random(8), 0, 0
    for flat in unsafe_systems():
        document = json.loads(json.dumps(to_json(flat)))
        block, orders = filled(document["systems"]["block"]), document["orders"]
        assert flat.name in ("random", *(make().name for make, *_ in WRONG.values())) or not judged(flat).safe
        for machine in complete(flat, rng):
            try:
                claims = claims_of(flat, machine, block, orders)
            except Refused:
                refused += 1
                continue
            for attempt in [claims, *(forged(rng, claims) for _ in range(3))]:
                assert not proves(block, orders, attempt), flat.name
                tried += 1
    assert tried > 40 and refused < tried, (tried, refused)


@pytest.mark.parametrize("what", ["met", "sent", "before", "rules"])
def test_malformed_evidence_is_refused(what: str) -> None:
    flat = tma_ring().flat()
    document, evidence = json.loads(json.dumps(to_json(flat))), json.loads(json.dumps(certificate(flat)))
    for bad in (None, [], {}, [[1]], [-1], "x", [[0, 10**9]]):
        changed = copy.deepcopy(evidence)
        if what == "rules":
            changed["rules"] = bad
        else:
            changed["rules"][what] = bad
        assert not check(document, changed).accepted
    del evidence["rules"]
    assert not check(document, evidence).accepted


def test_it_works_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, proof = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "proof.json"
    tma_ring().save(good)
    tma_ring(fence=False).save(bad)
    assert main(["verify", str(good), "--certificate", str(proof)]) == 0
    assert main(["check-certificate", str(good), str(proof)]) == 0
    assert main(["check-certificate", str(bad), str(proof)]) == 3
    assert "ACCEPTED" in capsys.readouterr().out
    assert ran(tma_ring().flat())[1] is None
