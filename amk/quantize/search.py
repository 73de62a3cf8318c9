"""A quantiser that clips: the scale of each group is the one with the least squared error.

For Gaussian weights a 4-bit code gains more from finer steps than it loses at the few clipped ends; with outliers it is
the other way round, and the search keeps the full range. Eight bits are fine enough that clipping gains nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from amk.weights.bfloat import F32
from amk.weights.quantised import Quantised, dequantised, grouped, nearest, with_scales
from amk.weights.weight_format import WeightFormat

SHARES = (0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72, 0.66, 0.6)
"""Parts of the full range that are tried."""


def searched(rows: F32, form: WeightFormat) -> Quantised:
    """f32 [rows, k] -> codes whose squared error is, in every group, at most that of `nearest`."""
    best = nearest(rows, form)
    if form.bits != 4:
        return best
    least = squared_error(rows, best, form)
    full, scales = best.scales.astype(np.float32), best.scales.copy()
    zeros = None if best.zeros is None else best.zeros.copy()
    for share in SHARES:
        narrow = np.maximum((full * np.float32(share)).astype(np.float16), np.float16(6e-8))
        tried = best.zeros
        if tried is not None:  # the same centre of the range, in the narrower steps
            centre = (np.float32(7.5) - tried) * full / narrow.astype(np.float32)
            tried = np.clip(np.rint(np.float32(7.5) - centre), 0, 15).astype(np.uint8)
        error = squared_error(rows, with_scales(rows, form, narrow, tried), form)
        better = error < least
        least, scales = np.where(better, error, least), np.where(better, narrow, scales)
        if zeros is not None and tried is not None:
            zeros = np.where(better, tried, zeros)
    return with_scales(rows, form, scales, zeros)


def squared_error(rows: F32, codes: Quantised, form: WeightFormat) -> NDArray[np.float64]:
    """f64 [rows, groups]."""
    difference = grouped(dequantised(codes, form) - rows, form)
    return np.asarray(np.square(difference, dtype=np.float64).sum(axis=2))
