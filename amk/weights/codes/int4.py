"""int4: 0 to 15; value = (code - zero) * scale, zero 8 where none is stored."""

from typing import Any

from amk.weights.codes import Array, Code


def encode(values: Array, zero: Any, xp: Any) -> Array:
    return xp.asarray(xp.clip(xp.round(values) + zero, 0, 15), dtype=xp.uint8)


def decode(codes: Array, zero: Any, xp: Any) -> Array:
    return xp.asarray(codes, dtype=xp.float32) - zero


CODE = Code(
    bits=4, formats=("int4-g64", "int4-g128", "int4-g64-zp", "int4-g128-zp"), staged="digits", largest=7.0, middle=8,
    encode=encode, decode=decode,
)  # fmt: skip
