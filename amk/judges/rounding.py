"""How far the model's own answers move where a machine rounds numbers: what a right kernel may be off by.

Property: `Rounded` holds the forward pass and `PASSES` others in which every number of a vector that a matrix is
    multiplied with, and every key and value, is off by up to `unit` of itself, each by itself and drawn anew for every
    token. Errors grow through layers, caches and the formats of caches as they do in a kernel that rounds there.
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
    """Factors near 1, a function of what was named last and of how often they were asked for since."""

    def __init__(self, unit: float) -> None:
        self._unit = unit

    def of(self, *names: int) -> None:
        self._draw = np.random.default_rng(names)

    def __call__(self, values: Floats) -> Floats:
        return np.asarray(values * (1 + self._unit * self._draw.uniform(-1, 1, values.shape)))


class Rounded:
    """passes: the forward pass, then those that are off; without a `unit` it stands alone."""

    def __init__(
        self, model: ModelSpec, tensors: Mapping[str, NDArray[Any]], keep: Callable[[Floats], Floats], unit: float
    ) -> None:
        self.passes = [ForwardPass(model, tensors, keep)]
        self._noise = [_Noise(unit) for _ in range(PASSES if unit else 0)]
        self.passes += [ForwardPass(model, tensors, _both(noise, keep), noise) for noise in self._noise]
        self.draw()

    def draw(self, *names: int) -> None:
        """Let what follows be off by amounts that are a function of these numbers."""
        for number, noise in enumerate(self._noise):
            noise.of(number, *names)


def allowed(answers: list[Floats], least: float) -> float:
    """Of the passes' answers: what a machine's may be off by, relative to the largest number of the first."""
    largest = max(float(np.abs(answers[0]).max()), 1e-3)
    return max([least, *(2 * float(np.abs(answer - answers[0]).max()) / largest for answer in answers[1:])])


def _both(first: Callable[[Floats], Floats], then: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    return lambda values: then(first(values))
