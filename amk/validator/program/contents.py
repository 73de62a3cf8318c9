"""What bytes hold, as numbers: dtype, family, index and token of a value packed into one, in this order.

Families have numbers that follow from their names alone, so rows mean the same in every schedule.
"""

from __future__ import annotations

from functools import cache
from typing import Final
from zlib import crc32

import numpy as np

from amk.schedule_ir.memory import ITEM_BYTES
from amk.validator.program.system import DONT_CARE, I64

TOKEN_BITS: Final = 21
INDEX_BITS: Final = 20
FAMILY_SHIFT: Final = TOKEN_BITS + INDEX_BITS
FAMILIES: Final = 65_521
FAMILY_BITS: Final = 16
DTYPES: Final = (None, *ITEM_BYTES)
CACHED: Final = frozenset({"k", "v"})

_NAMES: dict[int, str] = {}


@cache
def family_number(family: str) -> int:
    """Below 2^16 - 1; `family_name` inverts it."""
    number = crc32(family.encode()) % FAMILIES
    if _NAMES.setdefault(number, family) != family:
        raise ValueError(f"the value families '{family}' and '{_NAMES[number]}' have the same number; rename one")
    return number


def code(family: str, index: int, dtype: str | None = None) -> int:
    """The packed value without a token; -1 stays the value nobody asks for. dtype: of the array that the bytes are
    used as, where arrays of several may have bytes in common."""
    number = DTYPES.index(dtype) << FAMILY_BITS | family_number(family.removesuffix(".past"))
    return ((number << INDEX_BITS) + index) * (1 << TOKEN_BITS)


def index_of(values: I64) -> I64:
    """The indices of packed values."""
    found: I64 = values >> TOKEN_BITS & ((1 << INDEX_BITS) - 1)
    return found


def family_name(value: int) -> str:
    """For people: `h[3] of token 1`, `xn[2] of token 1, as digits`."""
    if value == DONT_CARE:
        return "unnamed content"
    token, rest = value & ((1 << TOKEN_BITS) - 1), value >> TOKEN_BITS
    (dtype, family), index = divmod(rest >> INDEX_BITS, 1 << FAMILY_BITS), rest & ((1 << INDEX_BITS) - 1)
    name = f"{_NAMES[family]}[{index}]" + (f" of token {token - 1}" if token else "")
    return name + (f", as {DTYPES[dtype]}" if dtype else "")


def with_token(values: I64, token: I64 | int, timeless: bool = False) -> I64:
    """Values of steps run for a token each (negative: outside the token loop). timeless: those of the caches keep
    theirs, because what a token appends is what later tokens read."""
    named = values != DONT_CARE
    if timeless:
        named &= ~np.isin(values >> FAMILY_SHIFT, [family_number(family) for family in CACHED])
    return values + np.where(named, token + 1, 0)
