"""The Gaussian process: which knobs matter is found, and climbs lead to better expectations than the pool."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from amk.agent.gate.candidate import Workshop
from amk.agent.propose.surrogate import (
    NOISES,
    RATES,
    START,
    Process,
    candidates,
    chosen,
    covariance,
    improvements,
    promising,
)
from amk.agent.run.session import offline
from amk.planner.settings import PHASED
from amk.planner.space import Space
from tests.agent.conftest import MakeLoop


def test_columns_are_those_of_the_knobs(workshop: Workshop) -> None:
    space: Space = workshop.space("phased")
    here, knobs = space.encode(PHASED), np.array(space.columns())
    assert len(knobs) == len(here)
    for settings in space.neighbours(PHASED):
        ((name, _),) = space.changes(settings, PHASED).items()
        place = [k.name for k in space.knobs].index(name)
        assert set(knobs[space.encode(settings) != here]) == {place}


@pytest.mark.parametrize("seed", range(4))
def test_knobs_that_matter_are_told_from_those_that_do_not(seed: int) -> None:
    """Six knobs of five values, of which the first and the fourth decide, the latter by one value of three."""
    rng = np.random.default_rng(seed)
    plain = rng.integers(5, size=(60, 5)) / 4
    one_hot = np.eye(3)[rng.integers(3, size=60)]
    x = np.hstack([plain[:, :3], one_hot, plain[:, 3:]])
    y = 2 * x[:, 0] + x[:, 4] + 0.01 * rng.standard_normal(60)
    y = (y - y.mean()) / y.std()
    rates, noise = chosen(tuple(map(tuple, x.tolist())), tuple(y.tolist()), (0, 1, 2, 3, 3, 3, 4, 5))
    assert min(rates[0], rates[3]) > max(rates[k] for k in (1, 2, 4, 5))
    assert set(rates) <= {*RATES, START} and noise in NOISES


@pytest.mark.turns(12)
def test_from_the_most_promising_neighbours_promise_more(make_loop: MakeLoop) -> None:
    """And what is found does not depend on how often it is asked: rates are those of a whole number of blocks."""
    loop = make_loop(offline("local"), evals=18)
    loop.run()
    context = loop.context()
    model = Process.fit(context, context.scored())
    pool = candidates(context, context.scored(), np.random.default_rng(0))[-3:]
    found = promising(context, model, pool)
    worth = improvements(context, model, found)
    assert worth == pytest.approx(sorted(worth, reverse=True), rel=1e-9)
    assert worth[0] > max(improvements(context, model, pool))
    chosen.cache_clear()
    assert promising(context, Process.fit(context, context.scored()), pool) == found


def test_memory_goes_with_pairs_of_points_not_with_columns() -> None:
    """A night keeps what the largest temporary array took: the C library does not give it back."""
    space = Space.around(PHASED)
    rng, knobs = np.random.default_rng(0), tuple(space.columns())
    x, y = np.array([space.encode(space.random(rng)) for _ in range(100)]), rng.standard_normal(100)
    points, values = tuple(map(tuple, x.tolist())), tuple(y.tolist())
    chosen.cache_clear()
    tracemalloc.start()
    try:
        rates, _ = chosen(points, values, knobs)
        covariance(x, x, np.array([rates[knob] for knob in knobs]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * x.shape[0] ** 2 * x.itemsize
