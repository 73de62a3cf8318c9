"""Keep or reject, from paired log ratios.

Rule: the one-sided 99% bootstrap bound of the median log ratio is below 0, and the median gain is at least
max(0.5%, 3 x the A/A spread). It must hold twice: in the paired test, and again in a fresh process on fresh inputs;
only the second is reported. No position may lose more than 2%. Nothing is kept from fewer rounds than were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p

import numpy as np

from amk.agent.journal.events import Measured

MIN_GAIN = 0.005
"""Of 200 copies on an H200 the one that seemed fastest gained 0.18%."""
WORTH = 0.01
"""A search is exhausted when nothing near its best can gain so much: worth looking for, not all that is kept."""
MADS = 3.0
CONFIDENCE = 0.99
RESAMPLES = 4000
MAX_LOSS = 0.02
HOPELESS_SHARE = 0.25
HOPELESS_AT_ONCE = 0.05
HOPELESS_AT_ONCE_MADS = 10.0
PILOT_SHARE = 0.5
"""A pilot, and the first half of a paired test, let pass what shows half of the gain that would be needed."""


@dataclass(frozen=True)
class Ruling:
    """`log_gain` > 0 is faster; `bound` is the upper confidence bound of the log ratio."""

    passed: bool
    reason: str
    log_gain: float
    bound: float | None = None


def spread(log_ratios: Sequence[float]) -> float:
    """Median absolute deviation of A/A rounds, which have no difference but noise."""
    values = np.array(log_ratios)
    return float(np.median(np.abs(values - np.median(values))))


def least_gain(mad: float) -> float:
    """The log gain that a keep requires."""
    return max(log1p(MIN_GAIN), MADS * mad)


def worth(mad: float) -> float:
    """The log gain below which nothing near the best need be looked for."""
    return max(log1p(WORTH), MADS * mad)


def hopeless(mad: float) -> float:
    """The log loss (negative: the gain) that ends a pilot when its first rounds all show more (less): of what is worth
    a keep less than one in a hundred is lost by that."""
    return -HOPELESS_SHARE * least_gain(mad)


def hopeless_at_once(mad: float) -> float:
    """The log loss in the first round of a pilot that ends it."""
    return max(log1p(HOPELESS_AT_ONCE), HOPELESS_AT_ONCE_MADS * mad)


def at_half(mad: float) -> float:
    """The log ratio that ends a paired test when the median of its first half is above it: this only refuses, so it
    keeps nothing that the whole paired test would not keep."""
    return -PILOT_SHARE * least_gain(mad)


def upper_bound(log_ratios: Sequence[float], seed: int) -> float:
    """One-sided bootstrap bound of the median; the resampling is a function of `seed`."""
    values = np.array(log_ratios)
    picks = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    return float(np.quantile(np.median(values[picks], axis=1), CONFIDENCE))


def pilot(log_ratios: Sequence[float], mad: float) -> Ruling:
    gain = -float(np.median(log_ratios))
    want = PILOT_SHARE * least_gain(mad)
    if gain < want:
        return Ruling(False, f"{percent(gain)}, at least {percent(want)} is needed for a paired test", gain)
    return Ruling(True, "", gain)


def paired_test(log_ratios: Sequence[float], mad: float, rounds: int, seed: int) -> Ruling:
    """The keep rule on `rounds` rounds."""
    gain, want = -float(np.median(log_ratios)), least_gain(mad)
    if len(log_ratios) < rounds:
        return Ruling(False, f"{percent(gain)} after {len(log_ratios)} of {rounds} rounds", gain)
    bound = upper_bound(log_ratios, seed)
    if bound >= 0:
        return Ruling(False, f"not significant: {percent(gain)}, 99% bound {percent(-bound)}", gain, bound)
    if gain < want:
        return Ruling(False, f"gain {percent(gain)} is below the {percent(want)} that a keep needs", gain, bound)
    return Ruling(True, f"{percent(gain)} faster, at least {percent(-bound)} with 99% confidence", gain, bound)


def everywhere(
    candidate_ms: Sequence[float], incumbent_ms: Sequence[float], positions: Sequence[int], mad: float
) -> Ruling:
    """No position may pay for the others: at each, the candidate is at most MAX_LOSS (or the noise) slower."""
    allowed = max(MAX_LOSS, MADS * mad)
    for pos, ours, theirs in zip(positions, candidate_ms, incumbent_ms, strict=True):
        if log(ours / theirs) > allowed:
            return Ruling(False, f"slower at position {pos}: {percent(log(theirs / ours))}", log(theirs / ours))
    return Ruling(True, "", 0.0)


def compared(reference: Measured) -> str:
    """The reference plan beside the best found, in words; both were measured in one fresh process."""
    gain, bound = float(np.median(reference.log_ratios)), -upper_bound(reference.log_ratios, 0)
    times = " / ".join(f"{ms:.4f}" for ms in reference.candidate_ms)
    best = " / ".join(f"{ms:.4f}" for ms in reference.incumbent_ms)
    return (
        f"the best found ({best} ms) is {percent(gain)} faster than the plan compared with ({times} ms), 99% bound "
        f"of the latter's gain {percent(bound)}"
    )


def percent(log_gain: float) -> str:
    """A log gain as a change of speed: +2.1% is 2.1% faster."""
    return f"{100 * float(np.expm1(log_gain)):+.2f}%"
