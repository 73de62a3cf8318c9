"""The default proposer: several searches side by side, each asked as often as it earns now.

An arm is a proposer that may have proposers of its own: the portfolio of those that turn knobs, structural search, what
earlier runs found, a language model. A discounted upper confidence bound chooses the arm (Garivier and Moulines, 2011).

* **Credit** is gain per cost. The gain is how much faster the arm's proposals were than everything before them. The
  cost is the seconds of their timed steps, or evaluations on a simulator that only these limit. The discount is strong,
  because gains are not stationary: an arm hands over when its latest evaluations found nothing.
* **Knobs open a run**, because edits refine a plan and go with it when knobs replace it. They do so until OPENING
  evaluations kept nothing, or until they only settle what is near the best.
* **An arm that only settles** what is near the best explores a third as much while its next proposal is expected to
  lose. It takes a tenth of the cost while none of two arms earns anything.
* **The second half of a run's minutes** gives three of four proposals to settling what is near the best, unless
  something was kept lately. The report can then say that nothing is open.

Credit comes from the journal and from no clock of the host, so a run that is repeated or resumed deals as before. An
open proposal counts as an evaluation. A proposal of which nothing was measured counts as JUDGEMENT of a mean
measurement: what the gate refuses takes no device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import log, sqrt

from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import State
from amk.agent.propose.base import Context, Proposer, Settling
from amk.agent.propose.costs import JUDGEMENT, Costs
from amk.agent.propose.portfolio import EVALUATIONS_WITHOUT_KEEP, gains

DISCOUNT = 0.88
"""Of what an evaluation says, with each later one: an arm stands for its latest eight or so."""
EXPLORE = 0.05
REWARD = 20.0
"""Of a log gain over everything before: 5% earns all."""
OPENING = 7
"""Evaluations behind the latest keep, the open one counted, after which a plan is edited: each of the six searches of
the knobs had a turn that kept nothing."""
SETTLES = 1 / 3
TURNS = 4
"""One of so many proposals in the second half goes to the arms even while something near the best is open."""


@dataclass(frozen=True)
class Arms:
    """nested: the arm that has proposers of its own. Whatever no other proposed is its, and it opens the run with those
    before it. What came from outside is no arm's. settlers: those that go through what is near the best."""

    arms: tuple[Proposer, ...]
    settlers: tuple[Proposer, ...] = ()
    nested: str = "knobs"
    name: str = "portfolio"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        settling = [arm.name for arm in self.arms if isinstance(arm, Settling) and arm.settles(context)]
        for arm in (*self._settlers(context.state), *self.order(context.state, settling)):
            if found := arm.ask(context):
                return found
        return []

    def _settlers(self, state: State) -> tuple[Proposer, ...]:
        """Who comes before the arms."""
        minutes, last = state.limits.minutes, state.curve[-1].evals if state.curve else 0
        late = minutes is not None and state.elapsed >= 30 * minutes and state.evals - last >= EVALUATIONS_WITHOUT_KEEP
        return self.settlers if late and len(state.trials) % TURNS else ()

    def order(self, state: State, settling: Collection[str] = ()) -> list[Proposer]:
        """By upper confidence bound, best first, and in their order while nothing is known of any; while the run opens,
        those that edit come last. settling: the names of those that only settle what is near the best."""
        names = [arm.name for arm in self.arms]
        bounds = self._bounds(state, names, settling)
        editing = names[names.index(self.nested) + 1 :] if self.nested in names else []
        opens = self.nested not in settling and _opens(state, editing)
        waits = [opens and name in editing for name in names]
        return [self.arms[arm] for arm in sorted(range(len(names)), key=lambda arm: (waits[arm], -bounds[arm]))]

    def first(self, name: str, state: State) -> bool:
        """Whether a proposer beside the arms, which hands in what it finds when it has it, is an arm that would be
        asked now: a language model."""
        *arms, beside = self._bounds(state, [*(arm.name for arm in self.arms), name])
        return beside >= max(arms)

    def _bounds(self, state: State, names: Sequence[str], settling: Collection[str] = ()) -> list[float]:
        """Upper confidence bounds of those so named, `nested` among them."""
        cost, reward = ([0.0] * len(names) for _ in range(2))
        costs, factor = Costs.of(state), 1.0
        for trial, gain in reversed(gains(state)):
            who = trial.proposed.proposer
            if trial.proposed.handle is not None and who not in names:
                continue
            arm = names.index(who if who in names else self.nested)
            if gain is None and not trial.closed:
                cost[arm] += factor
                continue
            share = costs.share(trial)
            cost[arm] += factor * share
            reward[arm] += factor * min(1.0, max(0.0, REWARD * (gain or 0.0)))
            factor *= DISCOUNT if trial.evaluated else DISCOUNT**JUDGEMENT
        total = 1.0 + sum(cost)

        def bound(arm: int) -> float:
            known = max(cost[arm], JUDGEMENT)
            explore = EXPLORE * (SETTLES if names[arm] in settling else 1.0)
            return reward[arm] / known + explore * sqrt(log(total) / known)

        return [bound(arm) for arm in range(len(names))]


def _opens(state: State, editing: Collection[str]) -> bool:
    """Whether none of those that edit had a turn, and one of the latest evaluations was kept or may be."""
    since = [trial for trial in state.trials[state.best + 1 :] if trial.evaluated or not trial.closed]
    return len(since) < OPENING and not any(trial.proposed.proposer in editing for trial in state.trials)
