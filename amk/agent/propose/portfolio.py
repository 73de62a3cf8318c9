"""A bandit over proposers: the default. Credit is read from the journal, so that a resumed run deals as before.

Each arm's worth is the discounted mean of its rewards (1 for a kept proposal, a share for one that came near), chosen
by an upper confidence bound. An arm that has nothing new is passed over, and when all are, `last` is asked: blind
draws, which hardly ever pay for what they cost. When nothing was kept for STALLED evaluations, `sweep` settles what is
near the best before the arms go on; from the hand-tuned plan it does so from the first proposal. Every TURNS-th
proposal of a sweep is three and more changes at once, of those that pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, sqrt

from amk.agent.propose.base import Context, Proposer, Suggestion
from amk.agent.propose.combine import Paid
from amk.agent.rulings import leading
from amk.agent.state import State, Trial

DISCOUNT = 0.97
EXPLORE = 0.15
NEAR = 0.02
"""A candidate within 2% of the incumbent earns part of a reward."""

STALLED = 24
"""Evaluations in a row that kept nothing, after which what is near the best is settled."""

TURNS = 6
TUNED = "fast"


@dataclass(frozen=True)
class Portfolio:
    arms: tuple[Proposer, ...]
    sweep: Proposer | None = None
    paid: Proposer = field(default_factory=Paid)
    last: Proposer | None = None
    name: str = "portfolio"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        last: tuple[Proposer, ...] = () if self.last is None else (self.last,)
        for arm in (*self._sweeping(context.state), *self.order(context.state.trials), *last):
            if found := arm.ask(context):
                return found
        return []

    def _sweeping(self, state: State) -> list[Proposer]:
        """Who comes before the arms."""
        if self.sweep is None or not (stalled(state) or (state.run is not None and state.run.start == TUNED)):
            return []
        return [self.sweep] if (len(state.trials) + 1) % TURNS else [self.paid, self.sweep]

    def order(self, trials: Sequence[Trial]) -> list[Proposer]:
        """Arms by upper confidence bound, best first; an arm that was never used comes before all."""
        weight = dict.fromkeys((a.name for a in self.arms), 0.0)
        reward = dict.fromkeys(weight, 0.0)
        factor = 1.0
        for trial in reversed(trials):
            if trial.proposed.proposer in weight and trial.closed:
                weight[trial.proposed.proposer] += factor
                reward[trial.proposed.proposer] += factor * earned(trial)
                factor *= DISCOUNT
        total = 1.0 + sum(weight.values())

        def bound(arm: Proposer) -> float:
            n = weight[arm.name]
            return float("inf") if n == 0 else reward[arm.name] / n + EXPLORE * sqrt(log(total) / n)

        return sorted(self.arms, key=bound, reverse=True)


def earned(trial: Trial) -> float:
    """Reward in [0, 1] of a closed trial."""
    decided = trial.decided
    if decided is None or decided.log_gain is None:
        return 0.0
    if decided.outcome == "kept":
        return min(1.0, 0.5 + 10 * decided.log_gain)
    return max(0.0, 0.2 * (1 + decided.log_gain / NEAR)) if decided.log_gain < 0 else 0.2


def stalled(state: State) -> bool:
    """Whether the latest evaluations kept nothing, and nothing waits for its race."""
    return leading(state) is None and state.evals - (state.curve[-1].evals if state.curve else 0) >= STALLED
