"""Held-out predictions: fitted to other kernels only, and better for it."""

from dataclasses import replace

import numpy as np
import pytest

from amk.planner.decode import plan
from amk.planner.settings import FAST, PHASED
from amk.simulator.calibrate import Run
from amk.simulator.constants import constants_for
from amk.simulator.held_out import folds_of, held_out
from amk.simulator.predict import step_ms
from amk.targets.target import load_target
from tests.tiny import tiny

TARGET = load_target("h200")
MODEL = tiny("small", layers=2, hidden=512, ffn=1024, heads=8, kv_heads=4, vocab=4096)
KNOWN = constants_for(TARGET)
HIDDEN = KNOWN.model_copy(update={"l2_us": KNOWN.l2_us * 1.5, "gemv_us": KNOWN.gemv_us * 1.3})
NAMES = "l2_us", "gemv_us"


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    points = [FAST, PHASED, replace(FAST, warps=4), replace(FAST, chunk_bytes=1024), replace(FAST, kv_splits=1)]
    schedules = [plan(MODEL, TARGET, settings=s, max_context=512) for s in points]
    return [Run(str(n), s, 100, step_ms(s, 100, HIDDEN)) for n, s in enumerate(schedules)]


def test_a_kernel_that_was_measured_twice_is_in_one_fold(runs: list[Run]) -> None:
    again = [*runs, replace(runs[1], ms=2 * runs[1].ms), replace(runs[0], pos=50)]
    assert folds_of(again, 3) == [0, 1, 2, 0, 1, 1, 0]


@pytest.mark.turns(4)
def test_what_other_kernels_tell_improves_the_prediction_of_each(runs: list[Run]) -> None:
    measured = np.array([r.ms for r in runs])
    before = np.array([step_ms(r.schedule, r.pos, KNOWN) for r in runs]) / measured - 1
    after = np.array(held_out(runs, KNOWN, 5, NAMES)) / measured - 1
    assert (np.abs(after) < 0.4 * np.abs(before)).all()


@pytest.mark.turns(12)
def test_a_kernel_has_no_influence_on_its_own_prediction(runs: list[Run]) -> None:
    found = held_out(runs, KNOWN, 5, NAMES)
    other = held_out([replace(runs[0], ms=1.1 * runs[0].ms), *runs[1:]], KNOWN, 5, NAMES)
    assert other[0] == found[0] and all(a != b for a, b in zip(found[1:], other[1:], strict=True))


@pytest.mark.turns(12)
def test_processes_change_nothing_and_one_kernel_is_refused(runs: list[Run]) -> None:
    assert held_out(runs[:3], KNOWN, 3, NAMES, jobs=2) == held_out(runs[:3], KNOWN, 3, NAMES)
    with pytest.raises(ValueError, match="two kernels"):
        held_out(runs[:1], KNOWN, 5, NAMES)
