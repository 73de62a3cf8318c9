"""When the search has nothing left near its best: every point around it was tried, refused or is a kernel known before.

Around the best are its single-knob neighbours and, when those are settled, every pair of single values that were each
measured faster than what they were a change of. A point is settled as one of:

* tried: proposed, and measured or refused by the gate;
* impossible: the planner makes no schedule of it;
* duplicate: it lowers to a kernel that was proposed before, or to the start;
* avoided: it has the values that the gate refused several times and never let pass, so that nobody proposes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from amk.agent.candidate import Impossible
from amk.agent.events import Exhausted
from amk.agent.propose.base import Context
from amk.agent.state import START
from amk.planner.settings import Settings

Fate = Literal["tried", "impossible", "duplicate", "avoided"]


@dataclass
class Surroundings:
    """Remembers what is settled around the present best: what is settled stays settled."""

    best: int = START
    settled: dict[Settings, Fate] = field(default_factory=dict)

    def look(self, context: Context) -> Exhausted | None:
        """None while a point is open; costs at most one lowering more than there are newly settled points."""
        if context.state.best != self.best:
            self.best, self.settled = context.state.best, {}
        base = context.incumbent()
        singles = list(context.space.neighbours(base))
        if not self._settle(context, singles):
            return None
        pairs = [pair for pair in dict.fromkeys(context.paying_pairs(base)) if pair not in singles]
        if not self._settle(context, pairs):
            return None
        points = singles + pairs
        counts = Counter(self.settled[point] for point in points)
        return Exhausted(
            best=self.best, singles=len(singles), pairs=len(pairs), tried=counts["tried"],
            impossible=counts["impossible"], duplicate=counts["duplicate"], avoided=counts["avoided"],
        )  # fmt: skip

    def _settle(self, context: Context, points: Sequence[Settings]) -> bool:
        """Whether all are; stops at the first that is open."""
        for point in points:
            if point not in self.settled:
                found = fate(context, point)
                if found is None:
                    return False
                self.settled[point] = found
        return True


def fate(context: Context, settings: Settings) -> Fate | None:
    """How a point was settled; None if it is open."""
    if settings in context.history.seen:
        index = context.history.settings.index(settings)
        return "tried" if context.state.trials[index].closed else None
    if settings == context.space.start:
        return "duplicate"
    made = context.workshop.make(settings)
    if isinstance(made, Impossible):
        return "impossible"
    first = context.workshop.make(context.space.start)
    if not isinstance(first, Impossible) and made.key == first.key:
        return "duplicate"
    if (known := context.state.by_key.get(made.key)) is not None:
        return "duplicate" if context.state.trials[known].closed else None
    return "avoided" if context.history.hopeless(settings) else None


def told(event: Exhausted) -> str:
    """In words."""
    best = "the start" if event.best == START else f"proposal {event.best}"
    return (
        f"exhausted around {best}: of {event.singles} plans that differ in one knob and {event.pairs} in two that paid "
        f"alone, {event.tried} were tried, {event.impossible} cannot be planned, {event.duplicate} are kernels known "
        f"before, {event.avoided} have values that the gate refused several times"
    )


def ended(reason: str, known: Exhausted | None) -> str:
    """Why a search ended, and whether anything is left near its best."""
    return f"{reason}; {told(known) if known is not None else 'not all around the best was tried'}"
