"""The decode-shaped benchmark in a small size: every stage accepts, and a broken copy is rejected."""

from __future__ import annotations

from dataclasses import replace

from amk.validator.memory.flat import judge
from amk.validator.program.system import System
from tests.validator.scale import decode_shaped, measure


def test_every_stage_accepts_a_small_decode() -> None:
    figures = measure(16, 12, 2)
    assert figures["events"] == 16 * 12 * 2 * 6 and figures["waits"] == 16 * 23


def _with_threshold(system: System, wait: int, threshold: int) -> System:
    changed = system.wait_threshold.copy()
    changed[wait] = threshold
    return replace(system, wait_threshold=changed)


def test_one_threshold_too_low_is_a_race_and_too_high_a_deadlock() -> None:
    system = decode_shaped(16, 12, 2)
    exact = int(system.wait_threshold[40])
    low, high = judge(_with_threshold(system, 40, exact - 1)), judge(_with_threshold(system, 40, exact + 32))
    assert low.deadlock is None and low.races.racy
    assert high.deadlock is not None and high.deadlock.cause == "too few producers"
