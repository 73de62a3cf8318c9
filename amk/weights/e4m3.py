"""e4m3, the number of eight bits of fp8 weights and caches: 1 sign, 4 exponent bits of bias 7, 3 of mantissa.

The pattern 0x7f reads as 480 here and on GPUs older than sm_89, is no number on the others, and is never made. Arrays
are those of `xp`, numpy or torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.weights.bfloat import F32

E4M3_MOST = 448.0


def to_e4m3(values: Any, xp: Any = np) -> Any:
    """The nearest e4m3 of each number, u8, ties to even, clipped to +-448."""
    values = xp.asarray(values, dtype=xp.float32)
    magnitude = xp.clip(xp.abs(values), None, E4M3_MOST)
    bits = magnitude.view(xp.int32)
    # Normal numbers: round the fraction to 3 bits, then move the exponent's bias from 127 to 7.
    normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3)
    small = xp.asarray(xp.round(magnitude * 512), dtype=xp.int32)
    codes = xp.asarray(xp.where(magnitude < 2.0**-6, small, normal), dtype=xp.uint8)
    return codes | xp.asarray(xp.signbit(values), dtype=xp.uint8) << 7


def from_e4m3(codes: Any, xp: Any = np) -> Any:
    """The number of each u8 code, f32."""
    # Sign and other bits stand where f32 has them. Exponents are 120 too small, which a product puts right, subnormals
    # included.
    bits = xp.asarray(codes.view(xp.int8), dtype=xp.int32) << 20 & (0x87F00000 - (1 << 32))
    return bits.view(xp.float32) * 2.0**120


def round_e4m3(values: NDArray[Any]) -> F32:
    """The nearest e4m3 numbers, clipped to +-448."""
    return np.asarray(from_e4m3(to_e4m3(values)), np.float32)
