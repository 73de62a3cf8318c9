"""Block fixed point: vectors whose blocks of 64 elements share a power of two, staged so by vector_layouts.cuh.

A block's scale is the least 2^e of which its elements are at most 32,512: digits are the nearest integers, of 16 bits,
halves the nearest numbers of 11 bits. The scale is at most 2^-13.9 of the largest element. A run of neighbouring blocks
may share one scale, the least of which all their elements are at most 32,512: then the digits of n elements are off by
at most sqrt(n) / 32,512 of the norm of those elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from amk.weights.weight_format import BLOCK as BLOCK
from amk.weights.weight_format import whole_blocks as whole_blocks

if TYPE_CHECKING:
    from amk.weights.bfloat import F32

SMALLEST = 15
"""The least exponent (biased, as in a float's bits) that is told from smaller ones."""


def block_scales(values: NDArray[Any], run: int = 1) -> F32:
    """f32 [n * 64] -> the scale of each block, f32 [n]; not a number where an element of its run is not finite.

    run: blocks that share a scale, from the first on.
    """
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, BLOCK)
    top = (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1)
    if run > 1 and top.size:
        top = np.maximum.reduceat(top, np.arange(0, top.size, run)).repeat(run)[: top.size]
    exponent = np.clip((top + np.uint32(0x20000)) >> np.uint32(23), SMALLEST, 255)
    return np.where(exponent == 255, np.float32(np.nan), np.ldexp(np.float32(1), exponent.astype(np.int32) - 141))


def block_sums(values: NDArray[Any], run: int = 1) -> F32:
    """f32 [n * 64] -> the sum of each block's elements, in digits, f32 [n]."""
    return np.asarray(round_digits(values, run).astype(np.float64).reshape(-1, BLOCK).sum(axis=1), np.float32)


def round_digits(values: NDArray[Any], run: int = 1) -> F32:
    """f32 [n * 64] -> each the nearest multiple of its block's scale, ties to even."""
    scales = block_scales(values, run)[:, None]
    blocks = np.asarray(values, np.float32).reshape(-1, BLOCK)
    return np.asarray(np.rint(blocks / scales) * scales, np.float32).reshape(-1)


def round_halves(values: NDArray[Any], run: int = 1) -> F32:
    """f32 [n * 64] -> each the nearest f16 number of units of its block's scale."""
    scales = block_scales(values, run)[:, None]
    blocks = np.asarray(values, np.float32).reshape(-1, BLOCK)
    return np.asarray((blocks / scales).astype(np.float16).astype(np.float32) * scales, np.float32).reshape(-1)
