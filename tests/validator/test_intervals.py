"""What chains order, against the definition."""

from __future__ import annotations

import numpy as np
import pytest

from amk.validator.order import intervals as intervals
from amk.validator.order.intervals import Views, chained


def _views(rng: np.random.Generator, nodes: int, agents: int, chains: int) -> Views:
    """Of random nodes, some without a chain or a view."""
    shape = (nodes, chains)
    gone = rng.random(shape) < 0.1
    own = np.where(rng.random(shape) < 0.1, -1, rng.integers(0, agents, shape)).astype(np.int32)
    rows = rng.integers(0, 12, (30, agents)).astype(np.int32)
    rows[0] = 0  # nothing has happened before what has no view
    return Views(
        agent=rng.integers(0, agents, shape).astype(np.int32),
        hi=np.where(gone, np.iinfo(np.int32).max, rng.integers(7, 14, shape)).astype(np.int32),
        own=own,
        value=rng.integers(0, 12, shape).astype(np.int32),
        row=np.where(own < 0, 0, rng.integers(0, 30, shape)),
        rows=rows,
    )


def _shown(views: Views, i: int, j: int) -> bool:
    """Does some view of node j show that some chain of node i has finished it?"""
    for agent, hi in zip(views.agent[i].tolist(), views.hi[i].tolist(), strict=True):
        seen = zip(views.own[j].tolist(), views.value[j].tolist(), views.row[j].tolist(), strict=True)
        if any(views.rows[row, agent] > hi or (own == agent and value > hi) for own, value, row in seen):
            return True
    return False


@pytest.mark.parametrize("at_once", [7, intervals.AT_ONCE])
def test_chains_order_what_their_clocks_show(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "AT_ONCE", at_once)
    ordered = total = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        views = _views(rng, 20, 6, 1 + seed % 3)
        i, j = (side.reshape(-1) for side in np.meshgrid(np.arange(20), np.arange(20)))
        found = chained(views, views, i, j)
        assert found.tolist() == [_shown(views, a, b) for a, b in zip(i.tolist(), j.tolist(), strict=True)]
        ordered, total = ordered + int(found.sum()), total + len(found)
    assert 0.1 * total < ordered < 0.9 * total
