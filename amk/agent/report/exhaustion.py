"""Whether what is near the best is exhausted, said plainly, with the error of what was measured.

Near the best are plans one and two knobs away (`decide/neighbourhood.py`), its single changes
(`propose/singles.py`), and combinations of the changes that gained. A pilot drops most of what is measured, so the
report says how often it drops what a keep asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import erf, sqrt

from amk.agent.decide.keep import PILOT_SHARE, least_gain, percent
from amk.agent.device.measure import ROUNDS
from amk.agent.journal.events import Surveyed
from amk.agent.journal.state import State
from amk.agent.propose.singles import DRAWS, Outcome
from amk.agent.propose.together import Sum

SIGMA = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean."""


def overlooked(mad: float) -> float:
    """The probability that a pilot drops what gains as much as a keep needs, where noise is normal."""
    if not mad:
        return 0.0
    error = OF_MEDIAN * SIGMA * mad / sqrt(ROUNDS["pilot"])
    return 0.5 * (1.0 - erf((1.0 - PILOT_SHARE) * least_gain(mad) / error / sqrt(2.0)))


def summary(state: State, survey: Surveyed | None, singles: Counter[Outcome], sums: Sequence[Sum]) -> tuple[str, str]:
    """Whether anything is left, and how sure that is. singles: the single changes of the best, by what became of them;
    sums: what the changes that gained may come to together."""
    new = [each.total for each in sums if not each.proposed]
    left = [
        "plans near the best were not looked at" if survey is None else "",
        f"{survey.open} plans of one or two changed knobs are open" if survey is not None and survey.open else "",
        f"{singles['open']} of {singles.total()} single changes of the best were not tried" if singles["open"] else "",
        f"{len(new)} combinations of what gained were not tried, {percent(max(new))} at most" if new else "",
    ]
    left = [each for each in left if each]
    what = f"What is near the best is not exhausted: {'; '.join(left)}." if left else (
        f"What is near the best is exhausted: every plan of one or two changed knobs is settled, so are all "
        f"{singles.total()} single changes of the best, and every combination of what gained that may come to a keep."
    )  # fmt: skip
    what += (
        f" Single changes are the distinct edits that {DRAWS} draws of each kind make to the best, and its knobs under "
        f"its edits: {singles['measured']} were measured, {singles['refused']} the gate refused, {singles['known']} "
        f"are kernels known before, {singles['avoided']} are values that the gate refused before, {singles['lost']} "
        f"lost {percent(least_gain(state.noise))} or more alone beside an earlier best."
    )
    mad = state.noise
    chance = overlooked(mad)
    share = "below 0.1%" if chance < 0.001 else f"{100 * chance:.1f}%"
    error = (
        f"The same program beside itself differs by {100 * mad:.3f}% (median absolute deviation of a round), so a "
        f"change that gains the {percent(least_gain(mad))} that a keep needs is dropped by its pilot with a "
        f"probability of {share}."
    )
    return what, error
