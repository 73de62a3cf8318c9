"""What agents order, against the definition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amk.validator.order import intervals as intervals
from amk.validator.order.intervals import Places, between_workers

NODES, EVENTS, AGENTS = 20, 30, 6


def _clocks(rng: np.random.Generator) -> Any:
    """Of random events: what agents order depends on these columns only."""
    system = SimpleNamespace(
        events=EVENTS, agent_of=rng.integers(0, AGENTS, EVENTS), index_of=rng.integers(0, 12, EVENTS)
    )
    rows = rng.integers(0, 12, (EVENTS, AGENTS)).astype(np.int32)
    return SimpleNamespace(system=system, rows=rows, row_of=rng.integers(0, EVENTS, EVENTS))


def _places(rng: np.random.Generator, agents: int) -> Places:
    """Of random nodes, some without an agent or a view."""
    shape = (NODES, agents)
    gone = rng.random((2, *shape)) < 0.1
    agent = np.where(gone[0], -1, rng.integers(0, AGENTS, shape)).astype(np.int32)
    view = np.where(gone[1], -1, rng.integers(0, 2 * EVENTS, shape)).astype(np.int32)
    return Places(agent, np.where(gone[0], -1, rng.integers(7, 14, shape)).astype(np.int32), view)


def _shown(clocks: Any, places: Places, i: int, j: int) -> bool:
    """Does some view of node j show that some agent of node i has finished it?"""
    for agent, hi in zip(places.agent[i].tolist(), places.hi[i].tolist(), strict=True):
        for view in places.view[j].tolist():
            if agent < 0 or view < 0:
                continue
            event = view // 2
            own = clocks.system.index_of[event] + view % 2 if clocks.system.agent_of[event] == agent else -1
            if max(int(clocks.rows[clocks.row_of[event], agent]), int(own)) > hi:
                return True
    return False


@pytest.mark.parametrize("at_once", [7, intervals.AT_ONCE])
def test_chains_order_what_their_clocks_show(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "AT_ONCE", at_once)
    ordered = total = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        clocks, places = _clocks(rng), _places(rng, 1 + seed % 3)
        i, j = (side.reshape(-1) for side in np.meshgrid(np.arange(NODES), np.arange(NODES)))
        sides = (Places(places.agent[k], places.hi[k], places.view[k]) for k in (i, j))
        found = between_workers(clocks, *sides)
        assert found.tolist() == [_shown(clocks, places, a, b) for a, b in zip(i.tolist(), j.tolist(), strict=True)]
        ordered, total = ordered + int(found.sum()), total + len(found)
    assert 0.1 * total < ordered < 0.9 * total
