"""Bayesian optimisation: a Gaussian process on the measured log times, the point of greatest expected improvement next.

Kernel: a product of exponentials with one rate a knob, since some knobs decide and others hardly matter. Marginal
likelihood chooses rates and noise, one after the other from grids. Times far behind the best count as equally bad.
Rates are those of the first trials, a multiple of BLOCK, so that a run that goes on proposes as it would have.

Candidates are neighbours of the best points, random points, and several changes of the best at once by what one draw
from the process says of each. From the most promising on, the search goes neighbour by neighbour to what promises more.
Before WARM_UP points are measured, it makes several changes at random.

Cost: O(n^3) in the trials used, of which there are at most MEMORY, and the open ones; every BLOCK trials some hundred
times that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import erf, exp, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.base import TRIES, Context
from amk.planner.settings import Settings
from amk.planner.space import Value, moved

Array = NDArray[np.float64]

WARM_UP = 8
MEMORY = 300
BLOCK = 16
POOL = 160
RATES = (0.0, 0.05, 0.2, 0.8, 2.0)
START = 0.4
"""Rate of a knob of which nothing is known."""
NOISES = (0.3, 0.1, 0.03, 0.01, 0.003)
"""Shares of the variance that the knobs do not explain."""
PASSES = 2
BAND = 0.1
"""Log times this far behind the best are all alike, unless that is more than half of them."""
MOST = 8
"""Changes of the best at once."""
CLIMBS, STEPS = 3, 6


@dataclass(frozen=True)
class Surrogate:
    name: str = "surrogate"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        rng = context.rng(self.name)
        scored = context.scored()
        if len(scored) < WARM_UP:
            counts = 2 + rng.integers(MOST - 1, size=TRIES)
            pool = [context.space.mutate(scored[0][0], rng, int(count)) for count in counts]
        else:
            model = Process.fit(context, scored).believing([context.space.encode(s) for s in context.pending()])
            best = min(scored, key=lambda pair: pair[1])[0]
            pool = [*candidates(context, scored, rng), *stacked(context, model, best, rng)]
            pool = promising(context, model, list(dict.fromkeys(pool)))
        for settings in pool:
            if context.is_new(settings):
                return context.suggest(self.name, settings, "greatest expected improvement")
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


def promising(context: Context, model: Process, pool: list[Settings]) -> list[Settings]:
    """`pool` and what neighbours add to it, greatest expected improvement first."""
    worth = dict(zip(pool, improvements(context, model, pool), strict=True))
    for here in sorted(pool, key=lambda s: -worth[s])[:CLIMBS]:
        for _ in range(STEPS):
            near = [s for s in context.space.neighbours(here) if s not in worth]
            worth.update(zip(near, improvements(context, model, near), strict=True))
            further = max([here, *near], key=lambda s: worth[s])
            if further == here:
                break
            here = further
    return sorted(worth, key=lambda s: -worth[s])


def improvements(context: Context, model: Process, points: list[Settings]) -> list[float]:
    return model.expected_improvement(np.array([context.space.encode(s) for s in points])).tolist() if points else []


@dataclass(frozen=True)
class Process:
    """A Gaussian process with zero mean on standardised scores. rates: of each column of a point."""

    x: Array
    y: Array
    alpha: Array
    factor: Array
    rates: Array
    noise: float
    best: float

    @classmethod
    def fit(cls, context: Context, scored: list[tuple[Settings, float]]) -> Process:
        whole = scored[: max(WARM_UP, len(scored) - len(scored) % BLOCK)]
        points, values = _standard(context, whole)
        knobs = tuple(context.space.columns())
        rates, noise = chosen(tuple(map(tuple, points.tolist())), tuple(values.tolist()), knobs)
        x, y = _standard(context, scored)
        spread = np.array([rates[knob] for knob in knobs])
        _, factor, alpha = likelihood(covariance(x, x, spread), y, noise)
        return cls(x, y, alpha, factor, spread, noise, float(y.min()))

    def believing(self, points: Sequence[Array]) -> Process:
        """This process after `points` were found to be what it expects: two dozen proposals are open at once."""
        if not points:
            return self
        mu = self.expected(np.array(points))[0]
        x, y = np.vstack([self.x, points]), np.concatenate([self.y, mu])
        _, factor, alpha = likelihood(covariance(x, x, self.rates), y, self.noise)
        return replace(self, x=x, y=y, alpha=alpha, factor=factor)

    def expected(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at `points`."""
        cross = covariance(points, self.x, self.rates)
        solved = np.linalg.solve(self.factor, cross.T)
        return np.asarray(cross @ self.alpha), np.sqrt(np.maximum(1.0 - (solved**2).sum(axis=0), 1e-9))

    def expected_improvement(self, points: Array) -> Array:
        mu, sigma = self.expected(points)
        z = (self.best - mu) / sigma
        density = np.array([exp(-v * v / 2) / sqrt(2 * pi) for v in z])
        mass = np.array([(1 + erf(v / sqrt(2))) / 2 for v in z])
        return np.asarray(sigma * (z * mass + density))


def _standard(context: Context, scored: list[tuple[Settings, float]]) -> tuple[Array, Array]:
    """Points and standardised scores of the best trials and the latest."""
    recent = dict(sorted(scored, key=lambda pair: pair[1])[: MEMORY // 2] + scored[-MEMORY // 2 :])
    raw = np.array(list(recent.values()))
    raw = np.minimum(raw, max(float(raw.min()) + BAND, float(np.median(raw))))
    scale = float(raw.std()) or 1.0
    return np.array([context.space.encode(s) for s in recent]), (raw - raw.mean()) / scale


@lru_cache(maxsize=2)
def chosen(
    points: tuple[tuple[float, ...], ...], values: tuple[float, ...], knobs: tuple[int, ...]
) -> tuple[tuple[float, ...], float]:
    """(rate of each knob, noise) of the greatest marginal likelihood that changes one by one lead to.

    knobs: which knob each column of a point belongs to.
    """
    x, y = np.array(points).T, np.array(values)
    columns = [np.flatnonzero(np.array(knobs) == knob) for knob in range(max(knobs) + 1)]
    rates, noise = [START] * len(columns), NOISES[0]
    total = START * apart(x, x, np.ones(len(x)))
    best = -np.inf
    for _ in range(PASSES):
        for tried in NOISES:
            if (found := likelihood(np.exp(-total), y, tried)[0]) > best:
                best, noise = found, tried
        for knob, own in enumerate(columns):
            distance = apart(x[own], x[own], np.ones(len(own)))
            without = total - rates[knob] * distance
            for rate in RATES:
                if (found := likelihood(np.exp(-without - rate * distance), y, noise)[0]) > best:
                    best, rates[knob] = found, rate
            total = without + rates[knob] * distance
    return tuple(rates), noise


def covariance(a: Array, b: Array, rates: Array) -> Array:
    """rates: of each column."""
    return np.asarray(np.exp(-apart(a.T, b.T, rates)))


def apart(a: Array, b: Array, rates: Array) -> Array:
    """Distance of each point of `a` from each of `b`, both given column by column. All columns of all pairs at once
    would be 45 MB of MEMORY points, which the C library does not give back."""
    total = np.zeros((a.shape[1], b.shape[1]))
    for one, other, rate in zip(a, b, rates, strict=True):
        total += rate * np.abs(one[:, None] - other)
    return total


def likelihood(covariances: Array, y: Array, noise: float) -> tuple[float, Array, Array]:
    """(log marginal likelihood up to a constant, Cholesky factor, weights)."""
    factor: Array = np.asarray(np.linalg.cholesky(covariances + noise * np.eye(len(y))), np.float64)
    alpha: Array = np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, y)), np.float64)
    return float(-0.5 * y @ alpha - np.log(np.diag(factor)).sum()), factor, alpha
