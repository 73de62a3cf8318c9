"""fp8: the bits of an e4m3 number; value = number * scale."""

from typing import Any

from amk.weights.codes import Array, Code
from amk.weights.e4m3 import E4M3_MOST, from_e4m3, to_e4m3


def encode(values: Array, zero: Any, xp: Any) -> Array:
    return to_e4m3(values, xp)


def decode(codes: Array, zero: Any, xp: Any) -> Array:
    return from_e4m3(codes, xp)


CODE = Code(bits=8, formats=("fp8",), staged="halves", largest=E4M3_MOST, encode=encode, decode=decode)
