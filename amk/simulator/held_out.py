"""Cross-validation: every kernel is predicted by constants that were fitted to other kernels.

The kernels are dealt into folds. For each fold `calibrate.fit` fits the constants to the kernels of all other folds.
All steps and folds use the slopes at the start: they say how predictions move, not what was measured, so nothing of a
fold is known when it is predicted. An error beyond `FAR_OFF` counts by its size and not by its square, so that one
kernel that the mechanisms do not describe does not move the constants of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amk.processes import process_pool
from amk.schedule_ir.codec import schedule_hash
from amk.simulator.calibrate import F64, FITTED, NUDGE, PRIOR, SPREAD, TIGHT, Run, moved
from amk.simulator.constants import Constants
from amk.simulator.predict import Prepared

FOLDS = 5
STEPS = 4
FAR_OFF = 3 * SPREAD


@dataclass(eq=False)
class _Fold:
    """rows: the runs that it is fitted to. at, predictions, loss: the best constants so far, as logarithms of factors,
    their predictions of all runs, ms, and their loss; step: what is tried next."""

    rows: NDArray[np.bool_]
    at: F64
    step: F64
    predictions: F64
    loss: float = float("inf")


def folds_of(runs: Sequence[Run], folds: int) -> list[int]:
    """The fold of each run: within a model the kernels are dealt in turn; a kernel that was measured more than once is
    in one fold."""
    known: dict[str, dict[str, int]] = {}
    places = []
    for run in runs:
        kernels = known.setdefault(run.schedule.model.name, {})
        places.append(kernels.setdefault(schedule_hash(run.schedule), len(kernels)) % folds)
    return places


def held_out(
    runs: Sequence[Run], start: Constants, folds: int = FOLDS, names: Sequence[str] = FITTED, jobs: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> list[float]:  # fmt: skip
    """Predicted ms of each run by constants fitted to the other folds. ValueError if a fold would have nothing to be
    fitted to."""
    places = np.array(folds_of(runs, folds))
    if len(set(places.tolist())) < 2:
        raise ValueError("runs of at least two kernels of a model are needed")
    measured = np.log([r.ms for r in runs])
    prior = np.array([TIGHT.get(n, PRIOR) for n in names])
    with _predictor(runs, jobs) as predicted:
        progress(f"slopes of {len(runs)} runs")
        nudged = [moved(start, names, NUDGE * unit) for unit in np.eye(len(names))]
        first, *others = np.log(predicted([start, *nudged]))
        slope = (np.stack(others, axis=1) - first[:, None]) / NUDGE
        fits = [_Fold(places != f, np.zeros(len(names)), np.zeros(len(names)), np.exp(first)) for f in range(folds)]
        for number in range(STEPS):
            times = predicted([moved(start, names, fold.at + fold.step) for fold in fits])
            for fold, row in zip(fits, times, strict=True):
                _improve(fold, row, np.log(row) - measured, slope, prior)
            progress(f"step {number + 1} of {STEPS}: losses {', '.join(f'{fold.loss:.0f}' for fold in fits)}")
    return [float(fits[f].predictions[i]) for i, f in enumerate(places)]


@contextmanager
def _predictor(runs: Sequence[Run], jobs: int) -> Iterator[Callable[[Sequence[Constants]], F64]]:
    """What gives the ms [sets, runs] of all runs by sets of constants, with so many processes."""
    if jobs == 1:
        yield lambda sets: np.array([[r.prepared.step_ms(constants) for r in runs] for constants in sets])
        return
    with process_pool(jobs) as pool:
        yield lambda sets: np.array(list(pool.map(_times, runs, [sets] * len(runs)))).T


def _times(run: Run, sets: Sequence[Constants]) -> list[float]:
    """ms of one run by each set of constants."""
    prepared = Prepared(run.schedule, run.pos)
    return [prepared.step_ms(constants) for constants in sets]


def _improve(fold: _Fold, predictions: F64, errors: F64, slope: F64, prior: F64) -> None:
    """Keep the trial if it is better, and say what to try next: half of the step if it is not."""
    weights = fold.rows * np.minimum(1.0, FAR_OFF / np.maximum(np.abs(errors), FAR_OFF))
    at = fold.at + fold.step
    loss = float(weights @ (errors * errors)) / SPREAD**2 + float((at / prior) @ (at / prior))
    if loss >= fold.loss:
        fold.step = fold.step / 2
        return
    fold.at, fold.loss, fold.predictions = at, loss, predictions
    normal = (slope.T * weights) @ slope / SPREAD**2 + np.diag(prior**-2)
    step = np.linalg.solve(normal, -(slope.T @ (weights * errors) / SPREAD**2 + at / prior**2))
    fold.step = np.asarray(step, np.float64)
