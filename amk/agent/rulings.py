"""What the measurements of a proposal mean: passed or not, which one is raced first, whether another attempt is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from amk.agent import decide
from amk.agent.events import Measured, Phase
from amk.agent.measure import ROUNDS, Fault
from amk.agent.state import State, Trial

RETRIES = 2
"""Attempts of one phase before a proposal is given up as the cause."""

LOST = 8
"""Times that driver or supervisor may end during one phase before the proposal is suspected of it."""

PATIENCE = 16
"""Later proposals that are measured before one that passed its screen is raced, however few such there are."""

PHASES: tuple[Phase, ...] = ("screen", "race", "confirm")


def rule(state: State, phase: Phase, measured: Measured, index: int) -> decide.Ruling:
    """Whether `measured` passes its phase. A screen is seen against what the incumbent has gained since."""
    mad = state.noise
    if phase == "screen":
        gained = state.score_of(measured.against) - state.score_of(state.best)
        return decide.screen(tuple(ratio + gained for ratio in measured.log_ratios), mad)
    ruling = decide.race(measured.log_ratios, mad, ROUNDS[phase], index)
    assert state.run is not None
    even = decide.everywhere(measured.candidate_ms, measured.incumbent_ms, state.run.positions, mad)
    return ruling if even.passed else replace(ruling, passed=False, reason=even.reason)


def lost(state: State, trial: Trial) -> bool:
    """Whether its screen has already decided."""
    screen = trial.measured.get("screen")
    return screen is not None and not rule(state, "screen", screen, trial.index).passed


def promise(state: State, trial: Trial) -> float:
    """Log time relative to the start by its screen: the lower, the sooner it is raced."""
    screen = trial.measured["screen"]
    return state.score_of(screen.against) + float(np.median(screen.log_ratios))


def due(state: State, screened: Sequence[Trial], batch: int) -> bool:
    """Whether one of those that passed their screen is raced before others are screened."""
    waited = (sum(later.evaluated for later in state.trials[trial.index + 1 :]) for trial in screened)
    return len(screened) >= batch or max(waited, default=0) >= PATIENCE


def attempt(trial: Trial, phase: Phase) -> int | Fault:
    """The number of the next attempt; if there were too many, what the proposal is closed with."""
    before = [fault for fault in trial.faults if fault.phase == phase]
    failed = [fault for fault in before if fault.fault != "lost"]
    if len(failed) >= RETRIES:
        return Fault(failed[-1].fault, failed[-1].detail)
    if len(before) - len(failed) >= LOST:
        return Fault("lost", "driver or supervisor ended too often while it was measured")
    return len(before) + 1
