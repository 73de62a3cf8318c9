"""Every buffer cut where an access begins or ends: stretches of bytes that are touched alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amk.judges.oracle.touched import Touched
from amk.schedule_ir.expr import IntArray

Span = tuple[int, int, int]
"""(space, lo, hi)"""


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretches of all spaces by number; row i of the accesses is over stretches first[i] .. stop[i]-1. count: of all.
    spans: (first, stop) of the other spans."""

    first: IntArray
    stop: IntArray
    count: int
    spans: list[tuple[int, int]]


def stretches(touched: Touched, extra: Sequence[Span] = ()) -> Stretches:
    """Cut at both ends of each access, and of the spans that are asked for besides."""
    more = np.array(extra, np.int64).reshape(-1, 3)
    space = np.concatenate((touched.space, more[:, 0]))
    _, rank = np.unique(np.concatenate((touched.lo, more[:, 1], touched.hi, more[:, 2])), return_inverse=True)
    _, where = np.unique(np.concatenate((space, space)) << 40 | rank.reshape(-1), return_inverse=True)
    first, stop = np.split(where.reshape(-1), 2)
    n = len(touched.space)
    rest = list(zip(first[n:].tolist(), stop[n:].tolist(), strict=True))
    return Stretches(first[:n], np.maximum(stop, first)[:n], int(where.max(initial=-1)) + 1, rest)
