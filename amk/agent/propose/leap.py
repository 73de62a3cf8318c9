"""Many changes at once, drawn from what is known of each: Thompson sampling on a linear model of log time.

Effects of knobs nearly add up on a logarithmic scale. The coefficients of all knob values have a normal posterior, as
wide as what the model leaves unexplained. A draw from it says which changes look best. Between two and MOST of them are
made at once on what was measured fastest. What is well known to pay is in most draws, what was never tried in some, so
that the many proposals that are open at once differ, and their times tell the parts apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.base import Context
from amk.agent.propose.combine import MEMORY, RIDGE, WORST
from amk.planner.settings import Settings
from amk.planner.space import Value, moved

DRAWS = 12
MOST = 8
SMALLEST = 0.003
"""Standard deviation (log time) of what a model that explains everything leaves unexplained: noise."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Leap:
    name: str = "leap"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        base, rng = context.leader(), context.rng(self.name)
        known = Linear.fit(context, base)
        for _ in range(DRAWS):
            changes = known.draw(rng)
            count = 2 + int(rng.integers(MOST - 1))
            settings = moved(base, dict(changes[:count]))
            if len(changes) > 1 and context.is_new(settings):
                return context.suggest(self.name, settings, "changes that may pay, together")
        return []


@dataclass(frozen=True)
class Linear:
    """changes: knob values other than those of the base, with mean and factor of their coefficients' posterior."""

    changes: tuple[tuple[str, Value], ...]
    mean: Array
    factor: Array

    @classmethod
    def fit(cls, context: Context, base: Settings) -> Linear:
        changes = tuple((k.name, v) for k in context.space.knobs for v in k.values if v != getattr(base, k.name))
        column = {change: i for i, change in enumerate(changes)}
        everything = dict(context.scored())
        scored = list(everything.items())[-MEMORY:]
        x = np.zeros((len(scored), len(changes)))
        for row, (settings, _) in enumerate(scored):
            for change in context.space.changes(settings, base).items():
                x[row, column[change]] = 1.0
        y = np.array([min(score - everything[base], WORST) for _, score in scored])
        precision = x.T @ x + RIDGE * np.eye(len(changes))
        mean = np.linalg.solve(precision, x.T @ y)
        sigma = max(SMALLEST, float(np.sqrt(np.mean((y - x @ mean) ** 2))))
        inverse = np.linalg.inv(np.linalg.cholesky(precision))
        return cls(changes, mean, sigma * inverse.T)

    def draw(self, rng: np.random.Generator) -> list[tuple[str, Value]]:
        """By knob its best change in one draw, if it pays, the greatest gain first."""
        worth = self.mean + self.factor @ rng.standard_normal(len(self.mean))
        best: dict[str, tuple[float, Value]] = {}
        for (name, value), each in zip(self.changes, worth, strict=True):
            if each < min(0.0, best.get(name, (0.0, None))[0]):
                best[name] = (float(each), value)
        return [(name, value) for name, (_, value) in sorted(best.items(), key=lambda item: item[1][0])]
