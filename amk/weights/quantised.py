"""Quantised rows: codes, scales, zeros; the numbers they stand for; and the nearest codes for given numbers."""

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
        return with_scales(rows, form, scale_at_least(peak / np.float32(form.kind.largest)))
    low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
    most = np.float32((1 << form.bits) - 1)
    scales = scale_at_least((high - low) / most)
    zeros = np.clip(np.rint(-low / scales.astype(np.float32)), 0, most).astype(np.uint8)
    return with_scales(rows, form, scales, zeros)


def with_scales(rows: F32, form: WeightFormat, scales: Halves, zeros: Bytes | None = None) -> Quantised:
    """The nearest codes under given scales (and zeros), clipped to the range of the format."""
    blocks = grouped(rows, form) / scales.astype(np.float32)[..., None]
    zero = form.kind.middle if zeros is None else zeros.astype(np.float32)[..., None]
    codes = form.kind.encode(blocks, zero, np)
    return Quantised(np.ascontiguousarray(codes.reshape(len(rows), -1)[:, : rows.shape[1]]), scales, zeros)


def dequantised(quantised: Quantised, form: WeightFormat) -> F32:
    """f32 [rows, k]: what the codes stand for, exactly."""
    k = quantised.codes.shape[1]
    width = form.group or k
    scales = np.repeat(quantised.scales.astype(np.float32), width, axis=1)[:, :k]
    zero: Any = form.kind.middle
    if quantised.zeros is not None:
        zero = np.repeat(quantised.zeros.astype(np.float32), width, axis=1)[:, :k]
    numbers = form.kind.decode(quantised.codes, zero, np)
    return np.asarray(numbers * scales, np.float32)


def rounded(rows: F32, form: WeightFormat, quantise: Quantiser = nearest) -> F32:
    """The numbers that a matrix in this format holds."""
    return round_bf16(rows) if form.plain else dequantised(quantise(rows, form), form)
