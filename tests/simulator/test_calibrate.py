"""Fitting finds constants that were hidden, and agreement is what textbooks say."""

import numpy as np
import pytest

from amk.planner.decode import plan
from amk.planner.settings import NAIVE, UNTUNED
from amk.simulator.agreement import agreement, spearman
from amk.simulator.calibrate import Run, fit
from amk.simulator.constants import constants_for, load_constants, save_constants
from amk.simulator.predict import step_ms
from amk.targets.target import load_target
from tests.tiny import tiny


@pytest.mark.turns(4)
def test_hidden_constants_are_found(tmp_path) -> None:
    target = load_target("h200")
    known = constants_for(target)
    hidden = known.model_copy(update={"l2_us": known.l2_us * 3})
    model = tiny("small", layers=2, hidden=2048, ffn=4096, heads=32, kv_heads=8, vocab=60_000)
    runs = []
    for settings in (UNTUNED, NAIVE):
        schedule = plan(model, target, settings=settings, max_context=4096)
        runs += [Run(settings.plan, schedule, p, step_ms(schedule, p, hidden)) for p in (5, 3000)]
    found = fit(runs, known, ("l2_us",), spread=3.0)
    assert found.constants.l2_us == pytest.approx(hidden.l2_us, rel=0.15)
    assert max(map(abs, found.after)) < 0.01 < max(map(abs, found.before))
    save_constants(found.constants, tmp_path / "c.json")
    assert load_constants(tmp_path / "c.json") == found.constants


def test_rank_correlation() -> None:
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 40])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([4.0, 3, 2, 1])) == pytest.approx(-1)
    # Ties share their mean rank: ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
    assert spearman(np.array([1.0, 2, 2, 4]), np.array([1.0, 2, 3, 4])) == pytest.approx(0.9486833)


def test_agreement_of_a_prediction_that_is_wrong_by_a_factor() -> None:
    pairs = [(str(i), 1.0 + i / 10, 2 * (1.0 + i / 10)) for i in range(10)]
    found = agreement(pairs)
    assert found.spearman == pytest.approx(1) and found.recall == 1 and found.median_error == pytest.approx(1)
    assert found.near == pytest.approx(0.2)
    few = agreement(pairs[:2])
    assert few.spearman is None and few.worst_error == pytest.approx(1)
