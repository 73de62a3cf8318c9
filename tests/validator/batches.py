"""Many independent small systems as one, so that arrays do the work: the validator against the compiled explorer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amk.validator.memory.flat import judge
from amk.validator.memory.races import Race
from amk.validator.program.system import I64, System
from tests.validator.compiled_explorer import MAX_AGENTS, Truth, explore_all


@dataclass(frozen=True)
class Batch:
    """Independent systems in one; system k owns agents first_agent[k] .. first_agent[k+1]-1."""

    system: System
    first_agent: I64


def _pairs(races: tuple[Race, ...]) -> frozenset[tuple[int, int]]:
    return frozenset((r.first, r.second) for r in races)


def _expected_clocks(batch: Batch, truth: Truth) -> np.ndarray:
    """[events, 6] earliest cuts, with the whole agents' sizes for events that are never enabled."""
    system = batch.system
    size = np.diff(batch.first_agent)
    owner = np.repeat(np.arange(len(size)), size)[system.agent_of]
    column = batch.first_agent[owner][:, None] + np.arange(MAX_AGENTS)
    inside = np.arange(MAX_AGENTS) < size[owner][:, None]
    top = np.where(inside, system.agent_size[np.minimum(column, system.agents - 1)], -1)
    never = (truth.earliest < 0).all(axis=1)
    return np.where(never[:, None], top, np.where(inside, truth.earliest, -1))


def _clocks(batch: Batch, matrix: np.ndarray) -> np.ndarray:
    system, size = batch.system, np.diff(batch.first_agent)
    owner = np.repeat(np.arange(len(size)), size)[system.agent_of]
    column = batch.first_agent[owner][:, None] + np.arange(MAX_AGENTS)
    inside = np.arange(MAX_AGENTS) < size[owner][:, None]
    picked = np.take_along_axis(matrix, np.minimum(column, system.agents - 1), axis=1)
    return np.where(inside, picked, -1)


def differences(batch: Batch) -> tuple[list[str], dict[str, int]]:
    """Where verdict, maximal cut, clocks, races or unordered sums differ from exploration; and counts."""
    mine, truth = judge(batch.system, limit=None), explore_all(batch.system, batch.first_agent)
    found = []
    if not (truth.stuck == 1).all():
        found.append("more than one maximal cut")
    if not (mine.run.cut == truth.cut).all():
        found.append(f"cuts differ for agents {np.flatnonzero(mine.run.cut != truth.cut).tolist()}")
    clocks, expected = _clocks(batch, mine.clocks.matrix()), _expected_clocks(batch, truth)
    if not (clocks == expected).all():
        found.append(f"clocks differ for events {np.flatnonzero((clocks != expected).any(axis=1)).tolist()}")
    if _pairs(mine.races.races) != truth.races:
        found.append(f"races differ: {sorted(_pairs(mine.races.races) ^ truth.races)}")
    stuck = batch.system.agent_size != truth.cut
    owner = np.repeat(np.arange(len(truth.stuck)), np.diff(batch.first_agent))
    racing = {int(owner[batch.system.agent_of[a]]) for a, _ in truth.races}
    sums = _pairs(mine.races.unordered_sums) ^ truth.sums
    if any(int(owner[batch.system.agent_of[a]]) not in racing for a, _ in sums):
        found.append(f"unordered sums differ: {sorted(sums)}")
    counts = {"systems": len(truth.stuck), "states": truth.states, "deadlock": len(np.unique(owner[stuck]))}
    return found, counts | {"racy": len(racing)}
