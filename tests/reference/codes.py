"""What quantised rows stand for, one number at a time, written from the formats' definitions alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def e4m3(code: int) -> float:
    """OCP 8-bit floating point, E4M3: bias 7, subnormals at exponent 0."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 0xF, code & 7
    return float(sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)))


def number(kind: str, code: int, zero: int | None) -> float:
    if kind == "fp8":
        return e4m3(code)
    if kind == "int8":
        return float(code - 256 if code >= 128 else code)
    return float(code - (8 if zero is None else zero))


def numbers(
    kind: str, group: int, codes: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any] | None
) -> NDArray[np.float64]:
    """f64 [rows, k]; group columns share a scale, all of a row's when group is 0."""
    out = np.zeros(codes.shape)
    for r, row in enumerate(codes.tolist()):
        for c, code in enumerate(row):
            g = c // group if group else 0
            zero = None if zeros is None else int(zeros[r, g])
            out[r, c] = number(kind, code, zero) * float(scales[r, g])
    return out


E4M3 = np.array([e4m3(code) for code in range(127)])


def nearest_e4m3(values: NDArray[Any]) -> NDArray[Any]:
    """Each number's nearest e4m3, by looking at all of them; at most +-448."""
    place = np.abs(np.abs(values)[..., None] - E4M3).argmin(axis=-1)
    return np.asarray(np.sign(values) * E4M3[place], values.dtype)
