"""Measurements during which the host stalled do not count."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from amk.bench.tools.times import summary
from amk.bench.tools.timing import STALL, TRIES, undisturbed

LATE, IN_TIME = 8 * STALL, STALL / 20


@pytest.mark.parametrize("late", [0, 1, TRIES - 1])
def test_a_stalled_measurement_is_made_again(late: int) -> None:
    measurements = iter([(22.3, LATE)] * late + [(14.2, IN_TIME)])
    assert undisturbed(lambda: next(measurements)) == (14.2, late)
    assert next(measurements, None) is None


def test_a_host_that_always_stalls_is_not_waited_for_forever() -> None:
    measurements = iter([(22.3, LATE)] * (TRIES + 1))
    assert undisturbed(lambda: next(measurements)) == (22.3, TRIES - 1)
    assert next(measurements, None) is not None


def test_stalls_stand_beside_the_times() -> None:
    assert summary([1.0, 2.0, 3.0], 4).stalls == 4
