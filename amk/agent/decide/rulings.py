"""What the measurements of a proposal mean: passed or not, which is tested first, whether another attempt is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from amk.agent.decide import keep as decide
from amk.agent.device.measure import ROUNDS, Fault
from amk.agent.journal.events import Measured, Phase
from amk.agent.journal.state import State, Trial

RETRIES = 2
"""Attempts of one phase before a proposal is given up as the cause."""

MOST_ENDS = 8
"""Times that driver or supervisor may end during one phase before the proposal is suspected of it."""

LONGEST = 3
"""Times the patience that a proposal which passed its pilot waits at most while better ones keep coming."""

PHASES: tuple[Phase, ...] = ("pilot", "paired test", "confirm")


def rule(state: State, phase: Phase, measured: Measured, index: int) -> decide.Ruling:
    """Whether `measured` passes its phase. A pilot is seen against what the incumbent has gained since."""
    mad = state.noise
    if phase == "pilot":
        gained = state.score_of(measured.against) - state.score_of(state.best)
        return decide.pilot(tuple(ratio + gained for ratio in measured.log_ratios), mad)
    ruling = decide.paired_test(measured.log_ratios, mad, ROUNDS[phase], index)
    assert state.run is not None
    even = decide.everywhere(measured.candidate_ms, measured.incumbent_ms, state.run.positions, mad)
    return ruling if even.passed else replace(ruling, passed=False, reason=even.reason)


def has_lost(state: State, trial: Trial) -> bool:
    """Whether its pilot has already decided."""
    pilot = trial.measured.get("pilot")
    return pilot is not None and not rule(state, "pilot", pilot, trial.index).passed


def promise(state: State, trial: Trial) -> float:
    """Log time relative to the start by its pilot: the lower, the sooner it has its paired test."""
    pilot = trial.measured["pilot"]
    return state.score_of(pilot.against) + float(np.median(pilot.log_ratios))


def promised(state: State, trial: Trial) -> float | None:
    """What an open proposal promises; None before its pilot."""
    return promise(state, trial) if "pilot" in trial.measured and not trial.closed else None


def leading(state: State) -> Trial | None:
    """The open proposal that promises most of those that passed their pilot."""
    passed = [t for t in state.open_trials if "pilot" in t.measured and not has_lost(state, t)]
    return min(passed, key=partial(promise, state), default=None)


def lead(state: State) -> float:
    """What the leading one promises to be faster than the incumbent (log)."""
    ahead = leading(state)
    return 0.0 if ahead is None else max(0.0, state.score_of(state.best) - promise(state, ahead))


def early_ends(state: State) -> tuple[float, float, float]:
    """The log losses that end a pilot in its first rounds, and in its first: it has to keep up with what leads; and
    the log ratio that ends a paired test at its half."""
    ahead, mad = lead(state), state.noise
    return decide.hopeless(mad) - ahead, decide.hopeless_at_once(mad) - ahead, decide.at_half(mad)


def due(state: State, passed: Sequence[Trial], patience: int) -> bool:
    """Whether the first of those that passed their pilot, the most promising first, has its paired test before
    others have a pilot: so many later ones brought nothing better, or one has waited for `LONGEST` times as many."""
    waited = [sum(later.evaluated for later in state.trials[trial.index + 1 :]) for trial in passed]
    return bool(waited) and (waited[0] >= patience or max(waited) >= LONGEST * patience)


def attempt(trial: Trial, phase: Phase) -> int | Fault:
    """The number of the next attempt; if there were too many, what the proposal is closed with."""
    before = [fault for fault in trial.faults if fault.phase == phase]
    failed = [fault for fault in before if fault.fault != "lost"]
    if len(failed) >= RETRIES:
        return Fault(failed[-1].fault, failed[-1].detail)
    if len(before) - len(failed) >= MOST_ENDS:
        return Fault("lost", "driver or supervisor ended too often while it was measured")
    return len(before) + 1
