"""Products of some rows with a matrix that is much larger, on the CPU: what they cost is how the matrix is read.

A library's product of matrices rearranges the matrix first, which pays for many rows only. For few rows each row of the
matrix is read once and multiplied with all of them, so their products are bitwise those of each row by itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate, pairwise

import numpy as np

from amk.weights.bfloat import F32

FEW = 8
"""Rows up to which that takes less processor time, or as much: less than half of it for one row to three."""
SOME = 64
"""Rows up to which the library takes less time with the matrix as the first factor, which rearranges it better."""
SHARE = 4 << 20
"""Bytes of a matrix that are worth a thread."""


def product(x: F32, matrix: F32, sizes: Sequence[int] = ()) -> F32:
    """x [tokens, in] times the transpose of matrix [out, in]: [tokens, out].

    sizes: of the parts of x, if there are several. What a part gets is bitwise its product by itself, whatever the
    others are: those of few rows read the matrix together, the others one after the other.
    """
    if len(sizes) < 2:
        return _of_one(x, matrix)
    out, few = np.empty((len(x), len(matrix)), np.float32), np.zeros(len(x), np.bool_)
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        few[end - size : end] = size <= FEW
        if size > FEW:
            out[end - size : end] = _of_one(x[end - size : end], matrix)
    if few.any():
        out[few] = _row_by_row(x[few], matrix).T
    return out


def _of_one(x: F32, matrix: F32) -> F32:
    if len(x) > SOME:
        return x @ matrix.T
    return np.ascontiguousarray((matrix @ x.T if len(x) > FEW else _row_by_row(x, matrix)).T)


def _row_by_row(x: F32, matrix: F32) -> F32:
    """[out, tokens]."""
    out = np.empty((len(matrix), len(x)), np.float32)
    count = min(threads(), 1 + matrix.nbytes // SHARE)
    ends = [len(matrix) * n // count for n in range(count + 1)]

    def part(first: int, end: int) -> None:
        np.vecdot(matrix[first:end, None], x, out=out[first:end])

    others = [_pool().submit(part, first, end) for first, end in pairwise(ends[1:])]
    part(0, ends[1])
    for each in others:
        each.result()
    return out


@cache
def threads() -> int:
    """As many as the libraries take: OMP_NUM_THREADS, or one for each processor that the process may use."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(setting)) if setting.isdigit() else len(os.sched_getaffinity(0))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads(), "amk-product")
