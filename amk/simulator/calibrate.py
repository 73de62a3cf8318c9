"""Constants from measured runs: damped least squares on the logarithms of a few of them.

Minimise  sum_i (ln predicted_i - ln measured_i)^2 / S^2  +  sum_k (ln c_k - ln c0_k)^2 / P^2  over the fitted c_k, with
S the spread of a good prediction and P what is known about a constant beforehand. The second term keeps constants that
the runs say nothing about where they were. Gauss-Newton with forward differences; a step that does not help is halved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import Constants
from amk.simulator.predict import Prepared

FITTED = (
    "read_gbps", "gemv_us", "chunk_us", "chunk_gbps", "copy_us", "l2_us", "l2_gbps", "hop_us", "queue_us_per_kib",
    "fence_us", "fence_us_per_kib", "barrier_warp_us", "far_us_per_kib", "drain_gbps", "round_us",
)  # fmt: skip
"""What runs of whole steps can tell; the others come from micro-benchmarks."""

TIGHT = {"read_gbps": 0.03}
SPREAD = 0.02
PRIOR = 0.4
NUDGE = 0.05
ROUNDS = 6
HALVINGS = 4
ENOUGH = 1e-3
FEW = 24

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Run:
    """One measured kernel at one position. `name` says where it is from."""

    name: str
    schedule: Schedule
    pos: int
    ms: float

    @cached_property
    def prepared(self) -> Prepared:
        return Prepared(self.schedule, self.pos)


@dataclass(frozen=True)
class Fit:
    """errors: ln(predicted / measured) of each run, before and after."""

    constants: Constants
    before: tuple[float, ...]
    after: tuple[float, ...]


def fit(
    runs: Sequence[Run],
    start: Constants,
    names: Sequence[str] = FITTED,
    progress: Callable[[str], None] = lambda _: None,
    spread: float = PRIOR,
) -> Fit:
    """Fit `names`, starting and staying near `start`. `progress` hears of each round; spread: how far one may stray."""
    prior = np.array([TIGHT.get(n, spread) for n in names])
    at = np.zeros(len(names))
    errors = _errors(runs, start)
    first = errors
    for number in range(ROUNDS):
        columns = [
            (_errors(runs, moved(start, names, at + NUDGE * unit)) - errors) / NUDGE for unit in np.eye(len(names))
        ]
        slope = np.stack(columns, axis=1)
        normal = slope.T @ slope / SPREAD**2 + np.diag(prior**-2)
        step = np.linalg.solve(normal, -(slope.T @ errors / SPREAD**2 + at / prior**2))
        at, errors, gain = _line(runs, start, names, prior, at, step, errors)
        progress(f"round {number + 1}: rms error {100 * float(np.sqrt(np.mean(errors**2))):.2f}%")
        if gain < ENOUGH:
            break
    constants = moved(start, names, at)
    source = f"fitted to {len(runs)} measured runs by `amk simulate --calibrate`"
    constants = constants.model_copy(update={"sources": start.sources | dict.fromkeys(names, source)})
    return Fit(constants, tuple(first.tolist()), tuple(errors.tolist()))


def fit_few(runs: Sequence[Run], start: Constants, progress: Callable[[str], None] = lambda _: None) -> Fit:
    """`fit` to at most `FEW` of the runs, evenly chosen: enough for the constants, and a minute instead of many."""
    step = max(1, -(-len(runs) // FEW))
    return fit(runs[::step], start, progress=progress)


def moved(start: Constants, names: Sequence[str], at: F64) -> Constants:
    """`start` with constants[k] times exp(at[k])."""
    update = {n: getattr(start, n) * float(np.exp(v)) for n, v in zip(names, at, strict=True)}
    return start.model_copy(update=update)


def _errors(runs: Sequence[Run], constants: Constants) -> F64:
    return np.array([np.log(r.prepared.step_ms(constants) / r.ms) for r in runs])


def _loss(errors: F64, at: F64, prior: F64) -> float:
    return float(errors @ errors / SPREAD**2 + (at / prior) @ (at / prior))


def _line(
    runs: Sequence[Run], start: Constants, names: Sequence[str], prior: F64, at: F64, step: F64, errors: F64
) -> tuple[F64, F64, float]:
    """The longest of step, step / 2, ... that lowers the loss, and by which fraction it does."""
    old = _loss(errors, at, prior)
    for halving in range(HALVINGS):
        trial = at + step / 2**halving
        trial_errors = _errors(runs, moved(start, names, trial))
        new = _loss(trial_errors, trial, prior)
        if new < old:
            return trial, trial_errors, (old - new) / old
    return at, errors, 0.0
