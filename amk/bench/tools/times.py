"""Summaries of repeated times. Apart from the measuring, so that recorded rows are read without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Times:
    """ms per token: median, 10th and 90th percentile.

    stalls: measurements that do not count, because the host stalled while it enqueued them (not looked for in records
    that lack it).
    """

    ms: float
    p10: float
    p90: float
    stalls: int = 0


@dataclass(frozen=True)
class Power:
    """Of a contestant that runs back to back: joules a token, watts, clocks in MHz, why clocks were held down."""

    joules: float
    watts: float
    sm_mhz: float
    least_sm_mhz: float
    memory_mhz: float
    throttled: tuple[str, ...] = ()


def summary(times: Sequence[float], stalls: int = 0) -> Times:
    low, middle, high = np.percentile(times, (10, 50, 90))
    return Times(float(middle), float(low), float(high), stalls)


def finite(value: Any) -> Any:
    """JSON values with the numbers that JSON lacks as their names, which float() reads: "nan", "inf", "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
