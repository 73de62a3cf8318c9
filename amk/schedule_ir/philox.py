"""Philox4x32-10, a counter-based generator: random words as a function of (key, counter), with no state to hand on.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. CUDA twin: lowering/cuda/philox.cuh.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(key: tuple[int, int], counter: tuple[U64, U64, U64, U64]) -> tuple[U64, U64, U64, U64]:
    """Four random 32-bit words per counter; every argument and result holds 32-bit values, arrays of equal shape."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = a * np.uint64(MULTIPLIERS[0]), c * np.uint64(MULTIPLIERS[1])
        a, b = (right >> _HALF) ^ b ^ np.uint64(k0), right & _WORD
        c, d = (left >> _HALF) ^ d ^ np.uint64(k1), left & _WORD
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return a, b, c, d
