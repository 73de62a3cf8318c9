"""The arithmetic of drawing a token: order of logits, their weights, the noise, and the search for a cut.

A filter keeps the rows whose logit is at least a cut v. Both filters define it by a total F over the rows with logit
>= v, which grows as v falls: v is the largest value with F(v) >= goal. top-k: F counts rows, goal = k. top-p: F adds
weights of the rows that top-k kept, goal = p times all of them. Rows that equal the cut are all kept.

Logits are compared as 32-bit keys, and a cut is found 5 bits of the key at a time: a round counts F at 32 equally
spaced keys, the next one looks between two of them. F is a sum of integers, so it depends neither on the order of
summation nor on how rows are dealt to workers. The CUDA twin is lowering/cuda/ranking.cuh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from amk.schedule_ir.sampling import PIVOTS, ROUNDS

if TYPE_CHECKING:
    from amk.weights.bfloat import F32

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

HALF = 30
WEIGHT_ONE = 36
"""A weight is exp((logit - peak) / T) * 2^36, rounded down; 2^24 rows add up to less than 2^61."""


def keys(logits: F32) -> U32:
    """Unsigned integers in the order of the logits; -0 counts as 0."""
    bits = np.ascontiguousarray(logits + np.float32(0), np.float32).view(np.uint32)
    return np.where(bits >> np.uint32(31) != 0, ~bits, bits | np.uint32(0x80000000)).astype(np.uint32)


def float_of(word: int) -> np.float32:
    """The float32 whose bits `word` is, as a signed or an unsigned number."""
    return np.float32(np.array(word & 0xFFFFFFFF, np.uint32).view(np.float32))


def weights(logits: F32, peak: np.float32, inverse: np.float32) -> U64:
    """Fixed-point weights, f32 [n] -> [n]."""
    scaled: F32 = np.exp((logits - peak) * inverse, dtype=np.float32) * np.float32(2**WEIGHT_ONE)
    return scaled.astype(np.uint64)


def gumbel(seed: tuple[int, int], pos: int, rows: range) -> F32:
    """Standard Gumbel noise of vocabulary rows at one position: -log(-log(1 - v)), v uniform.

    Large values come from small v, where float32 is finest; 64 random bits make ties between rows improbable.
    """
    from amk.schedule_ir.philox import philox  # whoever only reads the constants draws nothing

    row = np.arange(rows.start, rows.stop, dtype=np.uint64)
    zero = np.zeros_like(row)
    high, low, _, _ = philox(seed, (row, zero + np.uint64(pos), zero, zero))
    v = high.astype(np.float32) * np.float32(2**-32) + (low.astype(np.float32) + np.float32(0.5)) * np.float32(2**-64)
    v = np.minimum(v, np.float32(1 - 2**-24))
    noise: F32 = -np.log(-np.log1p(-v, dtype=np.float32), dtype=np.float32)
    return noise


def scores(logits: F32, peak: np.float32, inverse: np.float32, noise: F32) -> F32:
    """The row with the largest score is the token: (logit - peak) / T + noise, or the logit itself at T = 0."""
    return logits if inverse == 0 else (logits - peak) * inverse + noise


def split_sums(sums: U64) -> NDArray[np.int64]:
    """[32] sums as [64] words."""
    low, high = sums & np.uint64(2**HALF - 1), sums >> np.uint64(HALF)
    return np.stack((low, high), axis=1).reshape(-1).astype(np.int64)


def joined_sums(words: NDArray[np.int64]) -> U64:
    """[n, 64] words as [32] sums over n."""
    pairs = words.reshape(-1, PIVOTS, 2).astype(np.uint64)
    total: U64 = (pairs[:, :, 0] + (pairs[:, :, 1] << np.uint64(HALF))).sum(axis=0, dtype=np.uint64)
    return total


def goal_of(round_: int, total: int, parameter: int) -> int:
    """What F must reach. total: F of all rows that are still in; parameter: k or p * 2^32, 0 for none.

    Without top-k every row is wanted; without top-p the goal is out of reach, which leaves the cut at the least key.
    """
    if round_ < ROUNDS:
        return min(parameter, total) if parameter else total
    return max(1, total * parameter >> 32) if parameter else total + 1
