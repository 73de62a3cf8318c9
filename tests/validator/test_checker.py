"""Certificates: every SAFE is accepted, nothing UNSAFE ever is, and any input gets a verdict."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amk.judges.flat_checker as checker_module
from amk.adversary.system_builder import SystemBuilder
from amk.judges.flat_checker import check
from amk.validator.export.certificate import NotSafe, make_certificate
from amk.validator.memory.flat import Judgement, judge
from amk.validator.program.system import System, from_json
from tests.cases import cases
from tests.validator.random_systems import random_systems
from tests.validator.scale import decode_shaped

Certificate = dict[str, Any]


def claim(mine: Judgement, system: System) -> Certificate:
    """What a certificate of this system would say if it were safe."""
    rows = mine.clocks.threshold_rows.tolist()
    return {
        "format": "amk.certificate/1",
        "system": system.digest,
        "deterministic": True,
        "order": mine.run.legs[:, [0, 2]].tolist(),
        "thresholds": mine.clocks.threshold_keys.tolist(),
        "clocks": [[part for entry in row for part in (entry, 1)] for row in rows],
    }


def forge(rng: Random, certificate: Certificate, other: Certificate, system: System) -> Certificate:
    """One random forgery: raised clocks, shuffled or completed order, parts of another certificate."""
    forged = copy.deepcopy(certificate)
    trick = rng.randrange(6)
    rows = forged["clocks"]
    if trick == 0:
        for row in rows:
            for at in range(0, len(row), 2):
                row[at] += rng.choice((0, 0, 1, 2))
    elif trick == 1:
        forged["clocks"] = [[part for size in system.agent_size.tolist() for part in (size, 1)] for _ in rows]
    elif trick == 2:
        steps = [agent for agent, size in enumerate(system.agent_size.tolist()) for _ in range(size)]
        rng.shuffle(steps)
        forged["order"] = [[agent, 1] for agent in steps]
    elif trick == 3:
        part = rng.choice(("order", "thresholds", "clocks"))
        forged[part] = copy.deepcopy(other[part])
    elif trick == 4 and rows:
        at = rng.randrange(len(rows))
        rows[at] = rows[rng.randrange(len(rows))]
        forged["thresholds"][at] = [forged["thresholds"][at][0], rng.randint(0, 4)]
    elif rows:
        row = rng.choice(rows)
        at = 2 * rng.randrange(len(row) // 2)
        row[at] += rng.randint(1, 3)
    return forged


@pytest.mark.turns(4)
def test_every_safe_system_has_an_accepted_certificate() -> None:
    accepted, systems = 0, cases(600, 3000)
    for system in random_systems(systems, seed=41):
        mine = judge(system)
        if mine.safe:
            certificate = json.loads(json.dumps(make_certificate(mine)))
            verdict = check(system.to_json(), certificate)
            assert verdict.accepted, (verdict, system.to_json())
            assert verdict.deterministic == mine.races.deterministic
            accepted += 1
        else:
            with pytest.raises(NotSafe):
                make_certificate(mine)
    assert accepted > systems // 4


def single_lies(certificate: Certificate) -> Iterator[Certificate]:
    """The certificate with one clock entry raised by one, or set as high as it can matter."""
    for number, row in enumerate(clocks := certificate["clocks"]):
        for at in range(0, len(row), 2):
            for value in (row[at] + 1, 9):
                changed = [*row[:at], value, *row[at + 1 :]]
                yield certificate | {"clocks": [*clocks[:number], changed, *clocks[number + 1 :]]}


@pytest.mark.turns(12)
def test_no_forgery_for_an_unsafe_system_is_accepted() -> None:
    rng = Random(42)
    offered, donor = 0, None
    for system in random_systems(cases(300, 1500), seed=43):
        mine = judge(system)
        certificate = claim(mine, system)
        if mine.safe:
            donor = certificate
            continue
        raw = system.to_json()
        assert not check(raw, certificate).accepted
        forgeries = [forge(rng, certificate, donor or certificate, system) for _ in range(6)]
        for forged in (*forgeries, *single_lies(certificate)):
            assert not check(raw, forged).accepted, (raw, forged)
            offered += 1
    assert offered > cases(1200, 6000)


def test_raised_clocks_of_a_safe_system_are_rejected() -> None:
    """One more than the exact value is never a post-fixpoint."""
    tried = 0
    for system in random_systems(cases(150, 400), seed=44):
        mine = judge(system)
        if not mine.safe:
            continue
        raw, certificate = system.to_json(), claim(mine, system) | {"deterministic": mine.races.deterministic}
        for row in range(len(certificate["clocks"])):
            for at in range(0, len(certificate["clocks"][row]), 2):
                raised = copy.deepcopy(certificate)
                raised["clocks"][row][at] += 1
                assert check(raw, raised).reason == "clocks: not a post-fixpoint"
                tried += 1
    assert tried > cases(150, 500)


def test_weaker_clocks_that_still_prove_are_accepted() -> None:
    build = SystemBuilder()
    first, second, bystander = (build.event(build.agent()) for _ in range(3))
    for other in (first, bystander):
        counter = build.counter()
        build.signal(other, counter)
        build.signal(second, counter)
        build.wait(second, counter, 1)
    build.write(first, 0, 0, 4)
    build.write(second, 0, 0, 4)
    system = build.build()
    certificate = make_certificate(judge(system))
    assert certificate["clocks"] == [[1, 1, 0, 2], [0, 2, 1, 1]]
    dropped = certificate | {"thresholds": certificate["thresholds"][:1], "clocks": certificate["clocks"][:1]}
    assert check(system.to_json(), dropped).accepted
    dropped = certificate | {"thresholds": certificate["thresholds"][1:], "clocks": certificate["clocks"][1:]}
    assert check(system.to_json(), dropped).reason.startswith("race")


def test_counters_with_one_owner_need_no_claims() -> None:
    build = SystemBuilder()
    counter, owner, reader = build.counter(1), build.agent(), build.agent()
    for lap in range(4):
        event = build.event(owner)
        build.write(event, 0, lap, lap + 1, lap)
        build.signal(event, counter, 2)
    for lap, threshold in ((1, 4), (2, 6), (3, 9)):
        event = build.event(reader)
        build.wait(event, counter, threshold)
        build.read(event, 0, lap, lap + 1, lap)
    system = build.build()
    certificate = make_certificate(judge(system))
    assert certificate["clocks"] == [] and check(system.to_json(), certificate).accepted
    for wait in range(3):
        raw = system.to_json()
        raw["wait_threshold"][wait] -= 2
        forged = certificate | {"system": from_json(raw).digest}
        assert check(raw, forged).reason.startswith("race")


def test_steps_of_one_agent_cannot_stand_in_for_those_of_another() -> None:
    """Right number of steps in all, wrong number per agent: taken by rank they would run a deadlock backwards."""
    build = SystemBuilder()
    counter, left, right = build.counter(), build.agent(), build.agent()
    build.event(left)
    build.wait(build.event(right), counter, 1)
    build.signal(build.event(right), counter)
    system = build.build()
    forged = claim(judge(system), system)
    for order in ([[1, 1], [0, 2]], [[0, 1], [1, 2]], [[1, 2], [0, 1]], [[0, 3]], [[1, 3]]):
        assert check(system.to_json(), forged | {"order": order}).reason.startswith("order")


def test_a_certificate_is_bound_to_its_system() -> None:
    small, large = decode_shaped(2, 2, 1, private=1), decode_shaped(2, 3, 1, private=1)
    certificate = make_certificate(judge(small))
    assert check(small.to_json(), certificate).accepted
    assert check(large.to_json(), certificate).reason.endswith("another system")


def test_unordered_float_sums_may_not_be_called_deterministic() -> None:
    build = SystemBuilder()
    for _ in range(2):
        build.access(build.event(build.agent()), 3, 0, 0, 4)
    system = build.build()
    certificate = make_certificate(judge(system))
    assert certificate["deterministic"] is False and check(system.to_json(), certificate).accepted
    assert not check(system.to_json(), certificate | {"deterministic": True}).accepted


def test_the_checker_imports_nothing_of_the_product() -> None:
    tree = ast.parse(Path(str(checker_module.__file__)).read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "collections.abc", "dataclasses", "hashlib", "numpy", "numpy.typing", "typing"}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.integers() | st.floats() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@given(JUNK, st.data())
@settings(max_examples=cases(100, 300), deadline=None)
def test_any_input_gets_a_verdict(junk: object, data: st.DataObject) -> None:
    system = decode_shaped(2, 2, 1, private=1)
    raw, certificate = system.to_json(), make_certificate(judge(system))
    target = data.draw(st.sampled_from((raw, certificate)))
    key = data.draw(st.sampled_from(sorted(target)))
    if isinstance(target[key], list) and target[key] and data.draw(st.booleans()):
        target[key][data.draw(st.integers(0, len(target[key]) - 1))] = junk
    else:
        target[key] = junk
    assert isinstance(check(raw, certificate).accepted, bool)
    assert not check(junk, certificate).accepted and not check(raw, junk).accepted


@pytest.mark.parametrize("agents", [0, 1])
def test_systems_without_events(agents: int) -> None:
    build = SystemBuilder()
    for _ in range(agents):
        build.agent()
    build.initial(0, 0, 4, 1)
    build.final(0, 0, 4, 1)
    system = build.build()
    assert check(system.to_json(), make_certificate(judge(system))).accepted
    assert np.array_equal(system.agent_size, np.zeros(agents))
