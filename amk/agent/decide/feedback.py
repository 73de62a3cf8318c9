"""What became of a proposal, told so that it can be learned from: to a language model, to other agents, to the reader.

A change is told relative to the plan that it was made to (`parent`), and so is its gain. Both stay what they were when
the incumbent changes: the gain that a decision rests on is over the incumbent of its time, and where that was another
plan, the two measured scores are compared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import exp, sqrt
from statistics import median
from typing import Any

from amk.agent.decide.rulings import promised
from amk.agent.journal.events import Measured
from amk.agent.journal.state import START, State, Trial

SPREAD = 2.576 * 1.2533 * 1.4826
"""Of a median of n values with median absolute deviation d, SPREAD * d / sqrt(n) is the half width at 99%."""
UNKNOWN = 1.0
"""The half width where a pilot ended in its first round, which shows no spread."""


@dataclass(frozen=True)
class Fate:
    """gain: log speed over the parent, > 0 is faster; error: its half width at 99%; both None where nothing was
    measured. ms: of the candidate at each position of the run; other_ms: of the plan `against`, beside it."""

    index: int
    parent: int
    edit: dict[str, Any]
    why: str
    outcome: str
    codes: tuple[str, ...]
    reason: str
    gain: float | None = None
    error: float | None = None
    ms: tuple[float, ...] = ()
    other_ms: tuple[float, ...] = ()
    against: int | None = None

    @property
    def gain_text(self) -> str:
        """Such as "+1.20% ± 0.11%", or "-4.79% in one round"; "" where nothing was measured."""
        if self.gain is None or self.error is None:
            return ""
        spread = "in one round" if self.error >= UNKNOWN else f"± {100 * self.error:.2f}%"
        return f"{100 * (exp(self.gain) - 1):+.2f}% {spread}"

    @property
    def text(self) -> str:
        """One line."""
        parts = [f"#{self.index} = {name(self.parent)} with {json.dumps(self.edit)}: {self.outcome}"]
        if self.gain_text:
            there = " ".join(f"{ms:.4f}" for ms in self.ms)
            beside = " ".join(f"{ms:.4f}" for ms in self.other_ms)
            over = name(START if self.against is None else self.against)
            parts.append(f"{self.gain_text} over {name(self.parent)}; {there} ms beside {beside} of {over}")
        parts += [" ".join((*self.codes, self.reason)).strip(), f"proposed because: {self.why}" if self.why else ""]
        return "; ".join(part for part in parts if part)


def name(index: int) -> str:
    return "the start" if index == START else f"#{index}"


def fate(state: State, trial: Trial) -> Fate:
    """What became of `trial`, as far as it has come."""
    proposed, gated, decided = trial.proposed, trial.gated, trial.decided
    parent = proposed.parent if START <= proposed.parent < trial.index else START
    ending = Fate(
        trial.index, parent, proposed.edit, proposed.why, outcome(trial), gated.codes if gated else (),
        decided.reason if decided else gated.detail if gated else "",
    )  # fmt: skip
    last = _last(trial)
    score = _score(state, trial)
    if last is None or score is None:
        return ending
    before = 0.0 if parent == START else _score(state, state.trials[parent])
    gain = None if before is None else before - score
    error = _error(last)
    if parent != last.against and parent != START and (earlier := _last(state.trials[parent])) is not None:
        error = sqrt(error**2 + _error(earlier) ** 2)
    return Fate(
        *(ending.index, ending.parent, ending.edit, ending.why, ending.outcome, ending.codes, ending.reason),
        gain, error, last.candidate_ms, last.incumbent_ms, last.against,
    )  # fmt: skip


def outcome(trial: Trial) -> str:
    """How a trial ended, in one word."""
    if trial.decided is not None:
        return trial.decided.outcome
    return trial.gated.verdict if trial.gated is not None else "open"


def _score(state: State, trial: Trial) -> float | None:
    return trial.score if trial.closed else promised(state, trial)


def _last(trial: Trial) -> Measured | None:
    """The measurement that says most."""
    return next((trial.measured[p] for p in ("confirm", "paired test", "pilot") if p in trial.measured), None)


def _error(measured: Measured) -> float:
    ratios = measured.log_ratios
    if len(ratios) < 2:
        return UNKNOWN
    middle = median(ratios)
    return SPREAD * median(abs(ratio - middle) for ratio in ratios) / sqrt(len(ratios))
