"""Bayesian optimisation: a Gaussian process on the measured log times, the point of greatest expected improvement next.

Kernel: a sum over the knobs, because log times nearly add up, and a product of exponentials of their distances, one
length for all; share and length are chosen by marginal likelihood from a grid. Candidates are neighbours of the best
points, several changes of the best at once by what one draw from the process says of each, and random points; before
WARM_UP points are measured, several changes at random. Cost: O(n^3) in the trials used, of which there are at most
MEMORY, and the open ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import erf, exp, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from amk.agent.propose.base import TRIES, Context, Suggestion
from amk.planner.settings import Settings
from amk.planner.space import Value, moved

Array = NDArray[np.float64]
Shape = tuple[float, float]
"""Share of the sum over knobs, and length of the product."""

WARM_UP = 8
MEMORY = 160
POOL = 160
LENGTHS = (0.6, 1.2, 2.4, 4.8)
SHARES = (0.0, 0.5, 0.9)
"""Of the sum over the knobs in the variance."""
ALONE = 0.5
"""Length of one knob in that sum."""
MOST = 8
"""Changes of the best at once."""
JITTER = 1e-4


@dataclass(frozen=True)
class Surrogate:
    name: str = "surrogate"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        rng = context.rng(self.name)
        scored = context.scored()
        if len(scored) < WARM_UP:
            counts = 2 + rng.integers(MOST - 1, size=TRIES)
            pool = [context.space.mutate(scored[0][0], rng, int(count)) for count in counts]
            order = list(range(len(pool)))
        else:
            model = Process.fit(context, scored).believing([context.space.encode(s) for s in context.pending()])
            best = min(scored, key=lambda pair: pair[1])[0]
            pool = list(dict.fromkeys([*candidates(context, scored, rng), *stacked(context, model, best, rng)]))
            improvement = model.expected_improvement(np.array([context.space.encode(s) for s in pool]))
            order = [int(i) for i in np.argsort(-improvement)]
        for i in order:
            if context.is_new(pool[i]):
                return context.suggest(self.name, pool[i], "greatest expected improvement")
        return []


def candidates(context: Context, scored: list[tuple[Settings, float]], rng: np.random.Generator) -> list[Settings]:
    best = [s for s, _ in sorted(scored, key=lambda pair: pair[1])[:4]]
    near = [n for b in best[:2] for n in context.space.neighbours(b)]
    picks = rng.permutation(len(near))[: POOL // 2]
    pool = [near[int(i)] for i in picks]
    parents = [best[int(rng.integers(len(best)))] for _ in range(POOL // 4)]
    pool += [context.space.mutate(p, rng, 2 + int(rng.integers(2))) for p in parents]
    pool += [context.space.random(rng) for _ in range(POOL // 4)]
    return pool


def stacked(context: Context, model: Process, base: Settings, rng: np.random.Generator) -> list[Settings]:
    """Two to MOST changes of `base` at once, the best of each draw of what single changes are worth."""
    singles = list(context.space.neighbours(base))
    mean, sigma = model.expected(np.array([context.space.encode(s) for s in (base, *singles)]))
    found = []
    for _ in range(POOL // 2):
        worth = mean[1:] - mean[0] + sigma[1:] * rng.standard_normal(len(singles))
        best: dict[str, Value] = {}
        for i in np.argsort(worth):
            if worth[i] < 0:
                ((name, value),) = context.space.changes(singles[int(i)], base).items()
                best.setdefault(name, value)
        count = 2 + int(rng.integers(MOST - 1))
        found.append(moved(base, dict(list(best.items())[:count])))
    return found


@dataclass(frozen=True)
class Process:
    """A Gaussian process with zero mean on standardised scores."""

    x: Array
    y: Array
    alpha: Array
    factor: Array
    shape: Shape
    mean: float
    scale: float
    best: float

    @classmethod
    def fit(cls, context: Context, scored: list[tuple[Settings, float]]) -> Process:
        recent = sorted(scored, key=lambda pair: pair[1])[: MEMORY // 2] + scored[-MEMORY // 2 :]
        unique = list(dict(recent).items())
        x = np.array([context.space.encode(s) for s, _ in unique])
        raw = np.array([min(score, 1.0) for _, score in unique])
        mean, scale = float(raw.mean()), float(raw.std()) or 1.0
        y = (raw - mean) / scale
        fits = [(*likelihood(x, y, shape), shape) for shape in product(SHARES, LENGTHS)]
        _, factor, alpha, shape = max(fits, key=lambda fit: fit[0])
        return cls(x, y, alpha, factor, shape, mean, scale, float(y.min()))

    def believing(self, points: Sequence[Array]) -> Process:
        """This process after `points` were found to be what it expects: two dozen proposals are open at once."""
        if not points:
            return self
        mu = self.expected(np.array(points))[0]
        x, y = np.vstack([self.x, points]), np.concatenate([self.y, mu])
        _, factor, alpha = likelihood(x, y, self.shape)
        return replace(self, x=x, y=y, alpha=alpha, factor=factor)

    def expected(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at `points`."""
        cross = covariance(points, self.x, self.shape)
        solved = np.linalg.solve(self.factor, cross.T)
        return np.asarray(cross @ self.alpha), np.sqrt(np.maximum(1.0 - (solved**2).sum(axis=0), 1e-9))

    def expected_improvement(self, points: Array) -> Array:
        mu, sigma = self.expected(points)
        z = (self.best - mu) / sigma
        density = np.array([exp(-v * v / 2) / sqrt(2 * pi) for v in z])
        mass = np.array([(1 + erf(v / sqrt(2))) / 2 for v in z])
        return np.asarray(sigma * (z * mass + density))


def covariance(a: Array, b: Array, shape: Shape) -> Array:
    share, length = shape
    distance = np.abs(a[:, None, :] - b[None, :, :])
    alone = np.exp(-distance / ALONE).mean(axis=2) if share else 0.0
    return np.asarray(share * alone + (1 - share) * np.exp(-distance.sum(axis=2) / length))


def likelihood(x: Array, y: Array, shape: Shape) -> tuple[float, Array, Array]:
    """(log marginal likelihood up to a constant, Cholesky factor, weights)."""
    noisy = covariance(x, x, shape) + (JITTER + 0.01) * np.eye(len(x))
    factor: Array = np.asarray(np.linalg.cholesky(noisy), np.float64)
    alpha: Array = np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, y)), np.float64)
    return float(-0.5 * y @ alpha - np.log(np.diag(factor)).sum()), factor, alpha
