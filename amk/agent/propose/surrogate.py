"""Bayesian optimisation: a Gaussian process on the measured log times, the point of greatest expected improvement next.

Kernel: product of exponentials of the knobs' distances, one length for all, chosen by marginal likelihood from a grid.
Candidates are neighbours of the best points, their pairs of changes, and random points. Cost: O(n^3) in the trials
used, of which there are at most MEMORY, and the open ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erf, exp, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from amk.agent.propose.base import Context, Suggestion
from amk.agent.propose.local import knob_by_knob
from amk.planner.settings import Settings

Array = NDArray[np.float64]

WARM_UP = 8
MEMORY = 160
POOL = 160
LENGTHS = (0.3, 0.6, 1.2, 2.4)
JITTER = 1e-4


@dataclass(frozen=True)
class Surrogate:
    name: str = "surrogate"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        rng = context.rng(self.name)
        scored = context.scored()
        if len(scored) < WARM_UP:
            pool = list(knob_by_knob(context, scored[0][0], rng))
            order = list(range(len(pool)))
        else:
            pool = list(dict.fromkeys(candidates(context, scored, rng)))
            model = Process.fit(context, scored).believing([context.space.encode(s) for s in context.pending()])
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


@dataclass(frozen=True)
class Process:
    """A Gaussian process with zero mean on standardised scores."""

    x: Array
    y: Array
    alpha: Array
    factor: Array
    length: float
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
        fits = [(*likelihood(x, y, length), length) for length in LENGTHS]
        _, factor, alpha, length = max(fits, key=lambda fit: fit[0])
        return cls(x, y, alpha, factor, length, mean, scale, float(y.min()))

    def believing(self, points: Sequence[Array]) -> Process:
        """This process after `points` were found to be what it expects: two dozen proposals are open at once."""
        if not points:
            return self
        mu = covariance(np.array(points), self.x, self.length) @ self.alpha
        x, y = np.vstack([self.x, points]), np.concatenate([self.y, mu])
        _, factor, alpha = likelihood(x, y, self.length)
        return replace(self, x=x, y=y, alpha=alpha, factor=factor)

    def expected_improvement(self, points: Array) -> Array:
        cross = covariance(points, self.x, self.length)
        mu = cross @ self.alpha
        solved = np.linalg.solve(self.factor, cross.T)
        sigma = np.sqrt(np.maximum(1.0 - (solved**2).sum(axis=0), 1e-9))
        z = (self.best - mu) / sigma
        density = np.array([exp(-v * v / 2) / sqrt(2 * pi) for v in z])
        mass = np.array([(1 + erf(v / sqrt(2))) / 2 for v in z])
        return np.asarray(sigma * (z * mass + density))


def covariance(a: Array, b: Array, length: float) -> Array:
    distance = np.abs(a[:, None, :] - b[None, :, :]).sum(axis=2)
    return np.asarray(np.exp(-distance / length))


def likelihood(x: Array, y: Array, length: float) -> tuple[float, Array, Array]:
    """(log marginal likelihood up to a constant, Cholesky factor, weights)."""
    noisy = covariance(x, x, length) + (JITTER + 0.01) * np.eye(len(x))
    factor: Array = np.asarray(np.linalg.cholesky(noisy), np.float64)
    alpha: Array = np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, y)), np.float64)
    return float(-0.5 * y @ alpha - np.log(np.diag(factor)).sum()), factor, alpha
