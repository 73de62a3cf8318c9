"""Noise of simulated measurements: a function of (seed, where), so that a resumed run sees the same."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sin
from typing import Literal

import numpy as np

Kind = Literal["quiet", "gaussian", "heavy", "drift", "bimodal", "period"]


@dataclass(frozen=True)
class Noise:
    """kind gaussian: `sigma` relative. heavy: the same with 5% of blocks slowed by up to 8%. drift: the same on a slow
    wave of 2% that every block sees at its own time. bimodal: the same under a clock that changes between two rates 2%
    apart, every 20 blocks on average. period: the same with every block slowed by one of four amounts up to 2%, in
    turn, as by something that wakes up with the blocks. quiet: none."""

    kind: Kind = "gaussian"
    sigma: float = 0.004

    def factors(self, seed: int, where: tuple[int, ...], count: int) -> list[float]:
        """Multipliers of `count` blocks in the order of measurement; `where` are non-negative integers naming it."""
        if self.kind == "quiet":
            return [1.0] * count
        rng = np.random.default_rng([seed, *where])
        values = 1 + self.sigma * rng.standard_normal(count)
        if self.kind == "heavy":
            values *= 1 + 0.08 * rng.random(count) * (rng.random(count) < 0.05)
        if self.kind == "drift":
            phase = 2 * pi * rng.random()
            values *= [1 + 0.02 * sin(phase + 0.21 * i) for i in range(count)]
        if self.kind == "bimodal":
            values *= 1 + 0.02 * (np.cumsum(rng.random(count) < 0.05) % 2)
        if self.kind == "period":
            values *= 1 + 0.02 * rng.random(4)[np.arange(count) % 4]
        return [max(float(v), 0.5) for v in values]
