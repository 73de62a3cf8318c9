"""Noise of simulated measurements: a function of (seed, where), so that a resumed run sees the same."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sin
from typing import Literal

import numpy as np

Kind = Literal["quiet", "gaussian", "heavy", "drift"]


@dataclass(frozen=True)
class Noise:
    """kind gaussian: `sigma` relative. heavy: the same with 5% of blocks slowed by up to 8%. drift: the same on a slow
    wave of 2% that every block sees at its own time. quiet: none."""

    kind: Kind = "gaussian"
    sigma: float = 0.004

    def factors(self, seed: int, where: tuple[int, ...], count: int) -> list[float]:
        """Multipliers of `count` blocks; `where` are non-negative integers naming the measurement."""
        if self.kind == "quiet":
            return [1.0] * count
        rng = np.random.default_rng([seed, *where])
        values = 1 + self.sigma * rng.standard_normal(count)
        if self.kind == "heavy":
            values *= 1 + 0.08 * rng.random(count) * (rng.random(count) < 0.05)
        if self.kind == "drift":
            phase = 2 * pi * rng.random()
            values *= [1 + 0.02 * sin(phase + 0.21 * i) for i in range(count)]
        return [max(float(v), 0.5) for v in values]
