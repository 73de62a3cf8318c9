"""Words of memory by address, compiled: arrays as plain addresses.

Compiled functions take the grid as the address of its table of numbers and addresses (`state.Grid`). Arrays as
arguments would cost some hundred scalars a call, and minutes of compiling. Nothing is checked: an index has to be
inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Intrinsic = Callable[..., Any]


def _pointer(builder: Any, arguments: Any, bits: int) -> Any:
    """The address of element arguments[1] of `bits` bits behind arguments[0]."""
    word = ir.IntType(64)
    place = builder.add(arguments[0], builder.mul(arguments[1], ir.Constant(word, bits // 8)))
    return builder.inttoptr(place, ir.IntType(bits).as_pointer())


def _reader(bits: int) -> Callable[[int, int], int]:
    def read(_: Any, base: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            found = builder.load(_pointer(builder, arguments, bits))
            return found if bits == 64 else builder.zext(found, ir.IntType(64))

        return types.int64(types.int64, types.int64), code

    return cast(Callable[[int, int], int], intrinsic(read))


def _writer(bits: int) -> Callable[[int, int, int], None]:
    def write(_: Any, base: Any, index: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = arguments[2] if bits == 64 else builder.trunc(arguments[2], ir.IntType(bits))
            builder.store(value, _pointer(builder, arguments, bits))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), code

    return cast(Callable[[int, int, int], None], intrinsic(write))


at, to = _reader(64), _writer(64)
"""at(base, index), to(base, index, value): an int64 of an array that begins at address `base`."""

byte_at, byte_to = _reader(8), _writer(8)
half_at, half_to = _reader(16), _writer(16)
word_at, word_to = _reader(32), _writer(32)
"""The same of 8, 16 and 32 bits, zero-extended."""
