"""What a proposer is: a function from the journal's history to suggestions.

`ask(context)` is all there is: verdicts and times are told through the context, so that a proposer has no state that a
crash could lose, and a resumed run proposes what it would have proposed. Randomness comes from (seed, index, label).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Protocol, runtime_checkable

import numpy as np

from amk.agent.decide.rulings import promised
from amk.agent.decide.surroundings import Surroundings
from amk.agent.gate.candidate import Workshop
from amk.agent.gate.design import Design
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import START, State, Trial
from amk.agent.journal.store import Journal
from amk.agent.propose.couples import REFUSALS, Couples, Item
from amk.planner.settings import Settings
from amk.planner.space import OutsideSpaceError, Space, moved

TRIES = 48
"""Draws before a proposer admits that it finds nothing new."""


PAIRED = 150
"""Latest measured points among which single changes that paid are looked for: each is compared with every other."""


@dataclass(frozen=True)
class Refusal:
    """`count` proposals were refused for the same codes; `common` are the knob values that all of them had and that no
    proposal that passed has."""

    common: frozenset[Item]
    count: int


@dataclass
class History:
    """Trials of the run, kept up to date with the state: their designs, and of these the settings.

    What is learned of settings (`seen`, `refusals`, `couples`) follows from plans without edits alone.
    """

    space: Space
    settings: list[Settings] = field(default_factory=list)
    designs: list[Design] = field(default_factory=list)
    seen: set[Settings] = field(default_factory=set)
    refusals: dict[tuple[str, ...], list[Refusal]] = field(default_factory=dict)
    passed: set[Item] = field(default_factory=set)
    couples: Couples = field(default_factory=Couples)
    _judged: int = 0
    _blocked: frozenset[frozenset[Item]] | None = None
    _coupled: frozenset[frozenset[Item]] = frozenset()

    def __post_init__(self) -> None:
        self._passes(frozenset(self.space.point(self.space.start).items()))

    def _passes(self, values: frozenset[Item]) -> None:
        self.passed |= values
        self.couples.passed.append(values)

    def update(self, state: State) -> None:
        for trial in state.trials[len(self.settings) :]:
            try:
                parsed = self.space.parse(trial.proposed.settings)
            except OutsideSpaceError:
                parsed = self.space.start
            self.settings.append(parsed)
            self.designs.append(Design(parsed, trial.proposed.edits))
            if not trial.edited:
                self.seen.add(parsed)
        while self._judged < len(state.trials) and state.trials[self._judged].gated is not None:
            self._learn(state.trials[self._judged])
            self._judged += 1

    def _learn(self, trial: Trial) -> None:
        """What refused proposals have in common and no passing one has is what the gate refuses."""
        values = frozenset(self.space.point(self.settings[trial.index]).items())
        gated = trial.gated
        if trial.edited:
            return
        if gated is None or gated.verdict == "passed":
            self._passes(values)
        elif gated.verdict in ("unsafe", "unknown", "uncompilable"):
            self.refusals[gated.codes] = list(self._grouped(self.refusals.get(gated.codes, []), values))
            self.couples.refused.setdefault(gated.codes, []).append(values)
        self._blocked = None

    def _grouped(self, groups: Sequence[Refusal], values: frozenset[Item]) -> Iterator[Refusal]:
        """`groups` with one more refusal: two values that are refused for one reason are two groups."""
        placed = False
        for group in groups:
            if not (common := group.common - self.passed):
                continue
            if not placed and common & values:
                placed = True
                yield Refusal(common & values, group.count + 1)
            else:
                yield Refusal(common, group.count)
        if not placed and (own := values - self.passed):
            yield Refusal(own, 1)

    @property
    def blocked(self) -> frozenset[frozenset[Item]]:
        """Sets of knob values that together were refused REFUSALS times for one reason and never passed."""
        if self._blocked is None:
            groups = (r for known in self.refusals.values() for r in known if r.count >= REFUSALS)
            self._blocked = frozenset(values for r in groups if (values := r.common - self.passed))
            self._coupled = frozenset(self.couples.blocked(self._blocked))
        return self._blocked

    def hopeless(self, settings: Settings) -> bool:
        values = self.space.point(settings).items()
        return any(blocked <= values for blocked in self.blocked)

    def unpromising(self, settings: Settings) -> bool:
        """Whether it is hopeless, or has a pair of values that explains refusals: that may be wrong, so it says nothing
        of what is left near the best."""
        values = self.space.point(settings).items()
        return self.hopeless(settings) or any(pair <= values for pair in self._coupled)


@dataclass(frozen=True)
class Context:
    """Everything a proposer may know."""

    space: Space
    state: State
    history: History
    workshop: Workshop
    seed: int
    journal: Journal | None = None
    surroundings: Surroundings = field(default_factory=Surroundings)

    def rng(self, label: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, len(self.state.trials), zlib.crc32(label.encode())])

    def scored(self) -> list[tuple[Settings, float]]:
        """Settings of plans without edits with their log time relative to the start, in order of trial, the start
        first; what passed its screen and waits for its race has the score that the screen promises."""
        found = [(self.space.start, 0.0)]
        for trial in self.state.trials:
            if trial.edited:
                continue
            if (score := trial.score if trial.closed else promised(self.state, trial)) is not None:
                found.append((self.history.settings[trial.index], score))
        return found

    def pending(self) -> list[Settings]:
        """Open proposals of which nothing was measured yet."""
        open_trials = (t for t in self.state.open_trials if not t.edited)
        return [self.history.settings[t.index] for t in open_trials if promised(self.state, t) is None]

    def incumbent(self) -> Settings:
        """Settings of the best plan without edits, which is what settings are changed of."""
        best = self.state.best_plan
        return self.space.start if best == START else self.history.settings[best]

    def design(self, index: int) -> Design:
        return Design(self.space.start) if index == START else self.history.designs[index]

    def leader(self) -> Settings:
        """What was measured fastest, kept or not: small steps are made from it before their sum is worth a keep."""
        return min(self.scored(), key=lambda pair: pair[1])[0]

    def trials_of(self, proposer: str) -> list[Trial]:
        return [t for t in self.state.trials if t.proposed.proposer == proposer]

    def is_new(self, settings: Settings) -> bool:
        """Whether `settings` plan a kernel that was not proposed before. Costs one lowering."""
        if settings in self.history.seen or settings == self.space.start or self.history.unpromising(settings):
            return False
        key = self.workshop.key(settings)
        return key is not None and key not in self.state.by_key and key != self.start_key()

    def paying_pairs(self, base: Settings) -> Iterator[Settings]:
        """`base` with two values at once, of two knobs, each of which was measured to pay."""
        for (one, a), (other, b) in combinations(self._paying(base), 2):
            if one != other:
                yield moved(base, {one: a, other: b})

    def _paying(self, base: Settings) -> list[Item]:
        """Knob values, not those of `base`, whose single change was measured faster than the point that it changed."""
        scored = list(dict(self.scored()[-PAIRED:]).items())
        found: dict[Item, None] = {}
        for (settings, score), (other, before) in permutations(scored, 2):
            if score < before and len(changed := self.space.changes(settings, other)) == 1:
                ((name, value),) = changed.items()
                if getattr(base, name) != value:
                    found[name, value] = None
        return list(found)

    def start_key(self) -> str:
        """Of the start's kernel; "" if it can no longer be planned."""
        return self.workshop.key(self.space.start) or ""

    def suggest(self, proposer: str, settings: Settings, why: str = "") -> list[Suggestion]:
        return [Suggestion(proposer, dict(self.space.point(settings)), why, parent=self.state.best_plan)]


@runtime_checkable
class Closing(Protocol):
    """A proposer that works beside the search, and is told when that ends."""

    def close(self) -> None: ...


class Proposer(Protocol):
    """`ask` returns any number of suggestions; none means that it has nothing new."""

    @property
    def name(self) -> str: ...

    def ask(self, context: Context) -> Sequence[Suggestion]: ...
