"""How the simulator ranked what a device measured: whether it is worth asking about the next candidate."""

from __future__ import annotations

import numpy as np

from amk.agent.journal.state import State
from amk.simulator.agreement import LEAST_POINTS, spearman

MOST_UNRANKED = 48
"""Measured designs after which the simulator is judged by its ranking of them."""
USEFUL = 0.3
"""Rank correlation below which it is not asked: on H200s it was 0.78 for llama3-8b in int4 and 0.16 for llama3.2-1b in
int8."""


def ranking(state: State) -> float | None:
    """Rank correlation of what a device measured with what the simulator had said; None of fewer than LEAST_POINTS.

    Measured is the time relative to the start, so that neither drift nor another card moves it.
    """
    pairs = designs(state)
    if len(pairs) < LEAST_POINTS:
        return None
    measured, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    return spearman(measured, predicted)


def misleads(state: State) -> bool:
    """Whether the simulator ranks the designs of this run so badly that its advice costs more than it brings."""
    known = ranking(state) if len(designs(state)) >= MOST_UNRANKED else None
    return known is not None and known < USEFUL


def designs(state: State) -> list[tuple[float, float]]:
    """What a device measured, and what the simulator had said, of each design of which both are known."""
    return [
        (trial.score, trial.gated.simulated_ms) for trial in state.trials
        if trial.score is not None and trial.gated is not None and trial.gated.simulated_ms is not None
    ]  # fmt: skip
