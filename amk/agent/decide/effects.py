"""What changes are worth around the plans that were the best at some time, and how far two changes do not add up.

Log times nearly add up over knobs. Where a plan, two single changes of it and both together have a score, what both
take beyond the sum is their interaction: negative where they help each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from amk.agent.decide.progress import Progress
from amk.planner.settings import Settings
from amk.planner.space import Value, moved

Item = tuple[str, Value]
Both = tuple[Item, Item]
"""In the order of their knobs' names."""
Knobs = tuple[str, str]


def both(one: Item, other: Item) -> Both:
    return (one, other) if one[0] < other[0] else (other, one)


@dataclass
class Base:
    """A plan that is or was the best. pairs: scores of two changes."""

    pairs: dict[Both, float] = field(default_factory=dict)


@dataclass
class Effects:
    """A function of the trials so far; remembers what it has looked at. Scores are log times relative to the start."""

    scores: dict[Settings, float] = field(default_factory=dict)
    by_key: dict[str, float] = field(default_factory=dict)
    bases: dict[Settings, Base] = field(default_factory=dict)
    kernel: Callable[[Settings], str | None] = lambda _: None
    """The key of the kernel that a plan lowers to; asked where a plan has no score of its own, because it may cost a
    lowering."""
    _open: list[int] = field(default_factory=list)
    _trials: int = 0

    def update(self, progress: Progress) -> None:
        trials, fresh = progress.state.trials, {}
        self.kernel = progress.workshop.key
        self._open += range(self._trials, len(trials))
        self._trials = len(trials)
        if not self.scores:
            fresh[progress.space.start] = 0.0
            self.by_key[progress.start_key()] = 0.0
        for index in self._open:
            if not trials[index].edited and (score := trials[index].score) is not None:
                fresh[progress.history.settings[index]] = score
                self.by_key.setdefault(trials[index].key or "", score)
        self._open = [index for index in self._open if not trials[index].closed]
        self.scores |= fresh
        for known in self.bases:
            self._place(progress, known, fresh)
        plans = [mark.index for mark in progress.state.curve if not trials[mark.index].edited]
        for base in (progress.space.start, *(progress.history.settings[index] for index in plans)):
            if base not in self.bases:
                self.bases[base] = Base()
                self._place(progress, base, self.scores)

    def worth(self, base: Settings, change: Item) -> float | None:
        """Log time of `base` with a single change, relative to `base`; None if it has no score. Another plan of the
        same kernel has its score."""
        name, value = change
        changed = moved(base, {name: value})
        score = self.scores.get(changed)
        if score is None and (key := self.kernel(changed)) is not None:
            score = self.by_key.get(key)
        return None if score is None else score - self.scores[base]

    def averaged(self, base: Settings) -> dict[Item, float]:
        """What single changes of `base` are worth, the median over their own score and what they added to each of the
        others that they were measured with: less noisy where they were measured with many."""
        pairs = self.bases[base].pairs
        alone = {c: worth for each in pairs for c in each if (worth := self.worth(base, c)) is not None}
        seen = {change: [worth] for change, worth in alone.items()}
        for (one, other), score in pairs.items():
            for change, beside in ((one, other), (other, one)):
                if change in alone and beside in alone:
                    seen[change].append(score - self.scores[base] - alone[beside])
        return {change: float(np.median(values)) for change, values in seen.items()}

    def interactions(self) -> dict[Knobs, list[float]]:
        """By two knobs, whatever was the best when they were measured."""
        found: dict[Knobs, list[float]] = {}
        for base, known in self.bases.items():
            for (one, other), score in known.pairs.items():
                a, b = self.worth(base, one), self.worth(base, other)
                if a is not None and b is not None:
                    found.setdefault((one[0], other[0]), []).append(score - self.scores[base] - a - b)
        return found

    def _place(self, progress: Progress, base: Settings, fresh: Iterable[Settings]) -> None:
        for settings in fresh:
            changed = list(progress.space.changes(settings, base).items())
            if len(changed) == 2:
                self.bases[base].pairs[both(*changed)] = self.scores[settings]
