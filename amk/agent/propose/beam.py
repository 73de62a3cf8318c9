"""The planner's offline search as a proposer: a beam over prefixes of decisions, on the simulator instead of a GPU.

A search is grown around the best measured point; all that it simulated is proposed, best first. When nothing of it is
new, one is grown around the next best point; when those are used up the proposer is silent, which is the fallback of
whoever asked it. What the gate refused again and again is not proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from amk.agent.decide.couples import Item
from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.base import Context
from amk.planner.search import Problem, Search
from amk.planner.settings import Settings

EXPANSIONS = 48
WIDTH = 1
"""A root's search decides every knob once."""

ROOTS = 4
POSITION = 1
"""Which of the run's positions the beam looks at: neither the shortest text nor a long one."""


@dataclass
class Beam:
    """It asks the simulator of the run's workshop, and is never told what a simulated back end uses."""

    name: str = "beam"
    _grown: dict[tuple[Settings, frozenset[frozenset[Item]]], list[Settings]] = field(default_factory=dict)

    def ask(self, context: Context) -> Sequence[Suggestion]:
        roots = sorted(context.scored(), key=lambda pair: pair[1])[:ROOTS]
        for root, _ in roots:
            place = root, context.history.blocked
            if place not in self._grown:
                self._grown[place] = self.grow(context, root)
            for leaf in self._grown[place]:
                if context.is_new(leaf):
                    return context.suggest(self.name, leaf, "best of the beam by the simulator")
        return []

    def grow(self, context: Context, root: Settings) -> list[Settings]:
        """What a search around `root` simulated, best first."""
        run, workshop = context.state.run, context.workshop
        positions = run.positions if run else (128,)
        looked = positions[POSITION : POSITION + 1] or positions
        problem = Problem(
            workshop.model, workshop.target, workshop.formats, workshop.context, looked, workshop.simulator.constants
        )
        # No preset is among the states: only what this run has measured.
        search = Search(problem, root, context.seed, WIDTH, presets=(), space=context.space, tight_first=False)
        search.limit, search.avoid = EXPANSIONS, context.history.hopeless
        for _ in search.rounds():
            if search.spent:
                break
        return [state.settings for state in search.ranked()]
