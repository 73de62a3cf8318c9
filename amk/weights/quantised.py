"""Quantised rows: codes, scales, zeros; the numbers they stand for; and the nearest codes for given numbers.

int8: two's complement, value = code * scale. int4: 0 to 15, value = (code - zero) * scale, zero 8 where none is stored.
fp8: e4m3 bits (1 sign, 4 exponent bits of bias 7, 3 of mantissa), value = e4m3 * scale. The pattern 0x7f reads as 480
here and on GPUs older than sm_89, is no number on the others, and is never made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.weights.bfloat import F32, round_bf16
from amk.weights.weight_format import WeightFormat

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]

INT4_ZERO = 8
E4M3_MOST = 448.0
LARGEST = {"int8": 127.0, "int4": 7.0, "fp8": E4M3_MOST}
"""The code that the largest magnitude of a group gets."""


@dataclass(frozen=True)
class Quantised:
    """codes u8 [rows, k] (int8 as its bits), scales fp16 [rows, groups], zeros u8 [rows, groups] or None."""

    codes: Bytes
    scales: Halves
    zeros: Bytes | None = None

    def at(self, rows: slice) -> Quantised:
        return Quantised(self.codes[rows], self.scales[rows], None if self.zeros is None else self.zeros[rows])


Quantiser = Callable[[F32, WeightFormat], Quantised]
"""f32 [rows, k] -> their codes."""


def grouped(rows: F32, form: WeightFormat) -> F32:
    """f32 [rows, groups, columns of a group], the last group padded with zeros."""
    count, k = rows.shape
    groups = form.groups(k)
    width = form.group or k
    if groups * width > k:
        rows = np.pad(rows, ((0, 0), (0, groups * width - k)))
    return rows.reshape(count, groups, width)


def scale_at_least(values: F32) -> Halves:
    """fp16 scales, each the least that is not below its value, so that the largest code is not exceeded; 1 for zero."""
    with np.errstate(over="ignore"):
        scales = values.astype(np.float16)
        low = scales.astype(np.float32) < values
        scales[low] = np.nextafter(scales[low], np.float16(np.inf))
    scales[values == 0] = 1
    if not np.isfinite(scales).all():
        raise ValueError("weights too large for an fp16 scale")
    return scales


def nearest(rows: F32, form: WeightFormat) -> Quantised:
    """Every number to its nearest code; the largest magnitude (with zeros: the range) of a group gives its scale."""
    blocks = grouped(rows, form)
    if not form.zeros:
        peak = np.abs(blocks).max(axis=2)
        return with_scales(rows, form, scale_at_least(peak / np.float32(LARGEST[form.codes])))
    low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
    scales = scale_at_least((high - low) / np.float32(15))
    zeros = np.clip(np.rint(-low / scales.astype(np.float32)), 0, 15).astype(np.uint8)
    return with_scales(rows, form, scales, zeros)


def with_scales(rows: F32, form: WeightFormat, scales: Halves, zeros: Bytes | None = None) -> Quantised:
    """The nearest codes under given scales (and zeros), clipped to the range of the format."""
    blocks = grouped(rows, form) / scales.astype(np.float32)[..., None]
    if form.codes == "int8":
        codes = np.clip(np.rint(blocks), -127, 127).astype(np.int8).view(np.uint8)
    elif form.codes == "fp8":
        codes = to_e4m3(blocks)
    else:
        offset = np.float32(INT4_ZERO) if zeros is None else zeros.astype(np.float32)[..., None]
        codes = np.clip(np.rint(blocks) + offset, 0, 15).astype(np.uint8)
    return Quantised(np.ascontiguousarray(codes.reshape(len(rows), -1)[:, : rows.shape[1]]), scales, zeros)


def dequantised(quantised: Quantised, form: WeightFormat) -> F32:
    """f32 [rows, k]: what the codes stand for, exactly."""
    k = quantised.codes.shape[1]
    width = form.group or k
    scales = np.repeat(quantised.scales.astype(np.float32), width, axis=1)[:, :k]
    if form.codes == "int8":
        numbers = quantised.codes.view(np.int8).astype(np.float32)
    elif form.codes == "fp8":
        numbers = E4M3[quantised.codes]
    else:
        numbers = quantised.codes.astype(np.float32)
        if quantised.zeros is None:
            numbers -= np.float32(INT4_ZERO)
        else:
            numbers -= np.repeat(quantised.zeros.astype(np.float32), width, axis=1)[:, :k]
    return np.asarray(numbers * scales, np.float32)


def rounded(rows: F32, form: WeightFormat, quantise: Quantiser = nearest) -> F32:
    """The numbers that a matrix in this format holds."""
    return round_bf16(rows) if form.codes == "bf16" else dequantised(quantise(rows, form), form)


def _e4m3_values() -> F32:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    magnitude = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)


E4M3 = _e4m3_values()
"""The number of each of the 256 codes."""


def to_e4m3(values: F32) -> Bytes:
    """The nearest e4m3 of each number, ties to even, clipped to +-448."""
    magnitude = np.minimum(np.abs(values), np.float32(E4M3_MOST))
    bits = np.ascontiguousarray(magnitude, np.float32).view(np.uint32)
    # Normal numbers: round the fraction to 3 bits, then move the exponent's bias from 127 to 7.
    normal = ((bits + np.uint32(0x7FFFF) + (bits >> np.uint32(20) & np.uint32(1))) >> np.uint32(20)).astype(np.int32)
    small = np.rint(magnitude * np.float32(512)).astype(np.int32)
    codes = np.where(magnitude < np.float32(2.0**-6), small, normal - (120 << 3)).astype(np.uint8)
    return codes | np.where(np.signbit(values), np.uint8(128), np.uint8(0))


def round_e4m3(values: NDArray[Any]) -> F32:
    """The nearest e4m3 numbers, clipped to +-448."""
    return np.asarray(E4M3[to_e4m3(np.asarray(values, np.float32))], np.float32)
