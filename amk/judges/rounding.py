"""How far the model's own answers move where a machine rounds numbers: what a right kernel may be off by.

Property: `Rounded` holds the forward pass and `PASSES` others in which every number of a vector that a matrix is
    multiplied with, and every key and value, is off by up to `unit` of itself. By how much is drawn for each number of
    float32, so equal numbers are off by the same amount, as in a kernel that rounds: errors of a token that is repeated
    add up. They grow through layers, caches and the formats of caches as they do there.
Why that bounds a right kernel: it keeps these numbers in bf16. What is rounded to the nearest is off by at most half
    of 2^-8, one that is rounded twice (hidden states and partial sums that cross SMs) by at most all of it. So with a
    `unit` of 2^-8 what it does is one of the draws, and a mild one: `allowed` is twice the largest that was seen.
Cost: PASSES + 1 forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.judges.forward import Floats, ForwardPass
from amk.models.model_spec import ModelSpec

PASSES = 8


class _Noise:
    """Factors near 1, a function of the number that they are for."""

    def __init__(self, unit: float, number: int) -> None:
        """number: of this function among others."""
        self._unit, self._salt = unit, np.uint64((number + 1) * 0x9E3779B97F4A7C15 % (1 << 64))

    def __call__(self, values: Floats) -> Floats:
        words = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64) + self._salt
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):  # mixes as splitmix64 does
            words = (words ^ words >> np.uint64(shift)) * np.uint64(factor)
        drawn = (words >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
        return np.asarray(values * (1 + self._unit * drawn))


class Rounded:
    """passes: the forward pass, then those that are off; without a `unit` it stands alone."""

    def __init__(
        self, model: ModelSpec, tensors: Mapping[str, NDArray[Any]], keep: Callable[[Floats], Floats], unit: float
    ) -> None:
        self.passes = [ForwardPass(model, tensors, keep)]
        for number in range(PASSES if unit else 0):
            noise = _Noise(unit, number)
            self.passes.append(ForwardPass(model, tensors, _both(noise, keep), noise))


def allowed(answers: list[Floats], least: float) -> float:
    """Of the passes' answers: what a machine's may be off by, relative to the largest number of the first."""
    largest = max(float(np.abs(answers[0]).max()), 1e-3)
    return max([least, *(2 * float(np.abs(answer - answers[0]).max()) / largest for answer in answers[1:])])


def _both(first: Callable[[Floats], Floats], then: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    return lambda values: then(first(values))
