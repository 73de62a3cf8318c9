"""What a proposer is: a function from the journal's history to suggestions.

`ask(context)` is all there is: verdicts and times are told through the context, so that a proposer has no state that a
crash could lose, and a resumed run proposes what it would have proposed. Randomness comes from (seed, index, label).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Protocol, runtime_checkable

import numpy as np

from amk.agent.decide.couples import Item
from amk.agent.decide.neighbourhood import Neighbourhood
from amk.agent.decide.progress import Progress
from amk.agent.gate.candidate import Candidate
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import Trial
from amk.agent.journal.store import Journal
from amk.planner.settings import Settings
from amk.planner.space import moved

TRIES = 48
"""Draws before a proposer admits that it finds nothing new."""


LATEST_POINTS = 150
"""Latest measured points among which single changes that paid are looked for: each is compared with every other."""


@dataclass(frozen=True)
class Context(Progress):
    """Everything a proposer may know. is_safe: the verdict on a candidate, asked without proposing it."""

    seed: int
    journal: Journal | None = None
    neighbourhood: Neighbourhood = field(default_factory=Neighbourhood)
    is_safe: Callable[[Candidate], bool] = lambda candidate: True

    def rng(self, label: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, len(self.state.trials), zlib.crc32(label.encode())])

    def trials_of(self, proposer: str) -> list[Trial]:
        return [t for t in self.state.trials if t.proposed.proposer == proposer]

    def paying_pairs(self, base: Settings) -> Iterator[Settings]:
        """`base` with two values at once, of two knobs, each of which was measured to pay."""
        for (one, a), (other, b) in combinations(self._paying(base), 2):
            if one != other:
                yield moved(base, {one: a, other: b})

    def _paying(self, base: Settings) -> list[Item]:
        """Knob values, not those of `base`, whose single change was measured faster than the point that it changed."""
        scored = list(dict(self.scored()[-LATEST_POINTS:]).items())
        found: dict[Item, None] = {}
        for (settings, score), (other, before) in permutations(scored, 2):
            if score < before and len(changed := self.space.changes(settings, other)) == 1:
                ((name, value),) = changed.items()
                if getattr(base, name) != value:
                    found[name, value] = None
        return list(found)

    def suggest(self, proposer: str, settings: Settings, why: str = "") -> list[Suggestion]:
        return [Suggestion(proposer, dict(self.space.point(settings)), why, parent=self.state.best_plan)]


@runtime_checkable
class Closing(Protocol):
    """A proposer that works beside the search, and is told when that ends."""

    def close(self) -> None: ...


@runtime_checkable
class Settling(Protocol):
    """A proposer that at times only measures what is expected to lose, so that the search can say what is left."""

    def settles(self, context: Context) -> bool: ...


class Proposer(Protocol):
    """`ask` returns any number of suggestions; none means that it has nothing new."""

    @property
    def name(self) -> str: ...

    def ask(self, context: Context) -> Sequence[Suggestion]: ...
