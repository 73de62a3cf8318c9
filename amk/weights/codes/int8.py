"""int8: two's complement, -127 to 127; value = code * scale."""

from typing import Any

from amk.weights.codes import Array, Code


def encode(values: Array, zero: Any, xp: Any) -> Array:
    return xp.asarray(xp.clip(xp.round(values), -127, 127), dtype=xp.int8).view(xp.uint8)


def decode(codes: Array, zero: Any, xp: Any) -> Array:
    return xp.asarray(codes.view(xp.int8), dtype=xp.float32)


CODE = Code(
    bits=8, formats=("int8", "int8-g64", "int8-g128"), staged="digits", largest=127.0, encode=encode, decode=decode
)
