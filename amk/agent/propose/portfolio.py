"""A bandit over proposers of knobs: the worth of an arm is its rewards over their costs, both discounted.

An upper confidence bound chooses the arm. A reward is as much as a proposal was faster than all before it, or a share
if it came near. A cost is seconds of the GPU (`costs.py`). Open proposals count as drawn, so that the two dozen that
are open at once are not all of one arm. An arm that has nothing new is passed over. When all are, `last` is asked:
blind draws, which hardly ever pay for what they cost. Credit is read from the journal, so a resumed run deals as
before.

After EVALUATIONS_WITHOUT_KEEP evaluations that kept nothing, `sweep` settles what is near the best before the arms go
on. From the hand-tuned plan it does so from the first proposal. Every TURNS-th proposal of a sweep is three and more
changes at once, of those that pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, sqrt

from amk.agent.decide.rulings import leading, promised
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import State, Trial
from amk.agent.propose.base import Context, Proposer, Settling
from amk.agent.propose.combine import Paid
from amk.agent.propose.costs import Costs

DISCOUNT = 0.97
EXPLORE = 0.15
NEAR = 0.02
SHARE = 0.2
"""A candidate within 2% of the best earns part of a reward, at most this."""
SHARE_OF_SECONDS = 0.02
"""The same where seconds are the cost: what comes near takes a pilot, what gains takes tests of ten times as long."""

EVALUATIONS_WITHOUT_KEEP = 24
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
        for arm in (*self._sweeping(context.state), *self.order(context.state), *last):
            if found := arm.ask(context):
                return found
        return []

    def settles(self, context: Context) -> bool:
        """Whether its sweep comes first, and only settles."""
        swept = self.sweep if self._sweeping(context.state) else None
        return isinstance(swept, Settling) and swept.settles(context)

    def _sweeping(self, state: State) -> list[Proposer]:
        """Who comes before the arms."""
        if self.sweep is None or not (stalled(state) or (state.run is not None and state.run.start == TUNED)):
            return []
        return [self.sweep] if (len(state.trials) + 1) % TURNS else [self.paid, self.sweep]

    def order(self, state: State) -> list[Proposer]:
        """Arms by upper confidence bound, best first; an arm that was never used comes before all."""
        drawn, weight, reward = ({arm.name: 0.0 for arm in self.arms} for _ in range(3))
        costs, factor = Costs.of(state), 1.0
        for trial, gain in reversed(gains(state)):
            name = trial.proposed.proposer
            if name not in drawn:
                continue
            drawn[name] += factor
            if gain is not None or trial.closed:
                weight[name] += factor * (1.0 if costs.typical is None else costs.share(trial))
                reward[name] += factor * earned(gain, SHARE if costs.typical is None else SHARE_OF_SECONDS)
                factor *= DISCOUNT
        total = 1.0 + sum(drawn.values())

        def bound(arm: Proposer) -> float:
            if not (n := drawn[arm.name]):
                return float("inf")
            return reward[arm.name] / (weight[arm.name] or 1.0) + EXPLORE * sqrt(log(total) / n)

        return sorted(self.arms, key=bound, reverse=True)


def gains(state: State) -> list[tuple[Trial, float | None]]:
    """What each trial was faster (log) than the start and all before it; None where nothing is measured."""
    best, found = 0.0, []
    for trial in state.trials:
        score = trial.score if trial.closed else promised(state, trial)
        found.append((trial, None if score is None else best - score))
        best = best if score is None else min(best, score)
    return found


def earned(gain: float | None, share: float = SHARE) -> float:
    """Reward in [0, 1] of a trial, up to `share` if it only came near; what was not measured earns nothing."""
    if gain is None:
        return 0.0
    return min(1.0, share + 10 * gain) if gain > 0 else max(0.0, share * (1 + gain / NEAR))


def stalled(state: State) -> bool:
    """Whether the latest evaluations kept nothing, and nothing waits for its paired test."""
    return (
        leading(state) is None
        and state.evals - (state.curve[-1].evals if state.curve else 0) >= EVALUATIONS_WITHOUT_KEEP
    )
