"""bf16 as numpy sees it: the upper 16 bits of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Bits = NDArray[np.uint16]

_HALF = np.uint32(0x7FFF)
_ONE = np.uint32(1)
_SHIFT = np.uint32(16)


def to_bf16_bits(values: NDArray[Any]) -> Bits:
    """float32 -> bf16 bits of the same shape, rounded to nearest, ties to even; finite input."""
    values = np.ascontiguousarray(values, np.float32)
    bits = values.view(np.uint32)
    # Values that came from bf16 need no rounding, and finding that out costs less than rounding does.
    if not int(np.bitwise_or.reduce(bits, axis=None)) & 0xFFFF:
        return np.ascontiguousarray(values.view(np.uint16)[..., 1::2])
    odd = bits >> _SHIFT
    odd &= _ONE
    odd += _HALF
    odd += bits
    return np.ascontiguousarray(odd.view(np.uint16)[..., 1::2])


def from_bf16_bits(bits: Bits) -> F32:
    """bf16 bits -> float32, exactly."""
    wide = bits.astype(np.uint32)
    wide <<= _SHIFT
    floats: F32 = wide.view(np.float32)
    return floats


def round_bf16(values: NDArray[Any]) -> F32:
    """float32 rounded to the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + _HALF + ((bits >> _SHIFT) & _ONE)
    rounded &= np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
