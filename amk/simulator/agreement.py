"""How well predictions agree with measurements: rank correlation, error, and whether the best are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOP = 5
LEAST_POINTS = 3
"""Kernels from which on a rank correlation says something."""


@dataclass(frozen=True)
class Agreement:
    """pairs: (name, measured ms, predicted ms). spearman: None with fewer than `LEAST_POINTS` pairs. recall: share of
    the TOP fastest that are among the TOP predicted ones. near: share of the kernels within 15% of the fastest."""

    pairs: tuple[tuple[str, float, float], ...]
    spearman: float | None
    median_error: float
    worst_error: float
    recall: float
    near: float


def agreement(pairs: Sequence[tuple[str, float, float]]) -> Agreement:
    """Of at least one pair."""
    measured, predicted = (np.array([p[i] for p in pairs]) for i in (1, 2))
    errors = np.abs(predicted / measured - 1)
    top = min(TOP, len(pairs))
    best = set(np.argsort(measured, kind="stable")[:top].tolist())
    named = set(np.argsort(predicted, kind="stable")[:top].tolist())
    return Agreement(
        tuple(pairs), spearman(measured, predicted) if len(pairs) >= LEAST_POINTS else None,
        float(np.median(errors)), float(errors.max()),
        len(best & named) / top, float(np.mean(measured <= 1.15 * measured.min())),
    )  # fmt: skip


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Pearson correlation of the ranks, equal values sharing their mean rank; 0 if one of them is constant."""
    x, y = (ranks(v) for v in (a, b))
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 0.0


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean: NDArray[np.float64] = (ends - 1 + ends - counts) / 2.0
    return np.asarray(mean[inverse], np.float64)
