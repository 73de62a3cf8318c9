"""The Promela model, judged by spin where it is installed (500 systems by hand: `long_checks promela`)."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from amk.adversary.subjects import subject
from amk.adversary.system_builder import SystemBuilder
from amk.cli import main
from amk.validator.export.promela import conflicts, promela
from amk.validator.memory.flat import judge
from amk.validator.program.system import ACCUMULATE_INT, System
from tests.validator.random_systems import random_system
from tests.validator.ring_system import ring_system
from tests.validator.spin import missing, spin


def _handed(wait: bool) -> System:
    build = SystemBuilder()
    ready = build.counter(init=1)
    one, two = build.event(build.agent()), build.event(build.agent())
    build.write(one, 0, 0, 4)
    build.signal(one, ready, 2)
    build.read(two, 0, 3, 4)
    if wait:
        build.wait(two, ready, 3)
    return build.build()


def test_the_model_says_what_the_system_does() -> None:
    text = promela(_handed(True))
    assert "int c0 = 1;" in text and "c0 >= 3 -> assert(!inside0); inside1 = true;" in text
    assert "c0 = c0 + 2; inside0 = false;" in text


def test_accumulations_of_one_sort_do_not_conflict() -> None:
    build = SystemBuilder()
    for _ in range(2):
        build.access(build.event(build.agent()), ACCUMULATE_INT, 0, 0, 1)
    assert conflicts(build.build()) == {} and "inside" not in promela(build.build())


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (_handed(True), (False, False)),
        (_handed(False), (False, True)),
        (ring_system(2, 4), (False, False)),
        (ring_system(2, 4, drain_first=False), (False, True)),
    ],
)
def test_spin_agrees_on_known_systems(system: System, expected: tuple[bool, bool]) -> None:
    assert spin(system) == expected


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_spin_agrees_on_random_systems() -> None:
    rng = Random(8)
    for _ in range(4):
        system = random_system(rng)
        mine = judge(system)
        assert spin(system) == (mine.deadlock is not None, mine.races.racy)


def test_the_command_writes_a_model(tmp_path: Path) -> None:
    schedule = tmp_path / "s.json"
    schedule.write_text(json.dumps(subject("fenced", 2, 1, 1).document))
    model = tmp_path / "s.pml"
    assert main(["verify", str(schedule), "--emit-promela", str(model), "--tokens", "1"]) == 0
    text = model.read_text()
    assert text.startswith("/* schedule ") and text.count("active proctype") >= 2 and "assert(!inside" in text
