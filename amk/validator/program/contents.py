"""What bytes hold, as numbers: family, index and token of a value packed into one, in this order.

Families have numbers that follow from their names alone, so rows mean the same in every schedule.
"""

from __future__ import annotations

from functools import cache
from typing import Final
from zlib import crc32

import numpy as np

from amk.validator.program.system import DONT_CARE, I64

TOKEN_BITS: Final = 21
INDEX_BITS: Final = 20
FAMILY_SHIFT: Final = TOKEN_BITS + INDEX_BITS
FAMILIES: Final = 65_521
CACHED: Final = frozenset({"k", "v"})

_NAMES: dict[int, str] = {}


@cache
def family_number(family: str) -> int:
    """Below 2^16 - 1; `family_name` inverts it."""
    number = crc32(family.encode()) % FAMILIES
    if _NAMES.setdefault(number, family) != family:
        raise ValueError(f"the value families '{family}' and '{_NAMES[number]}' have the same number; rename one")
    return number


def code(family: str, index: int) -> int:
    """The packed value without a token; -1 stays the value nobody asks for."""
    return ((family_number(family.removesuffix(".past")) << INDEX_BITS) + index) * (1 << TOKEN_BITS)


def index_of(values: I64) -> I64:
    """The indices of packed values."""
    found: I64 = values >> TOKEN_BITS & ((1 << INDEX_BITS) - 1)
    return found


def family_name(value: int) -> str:
    """For people: `h[3] of token 1`."""
    if value == DONT_CARE:
        return "unnamed content"
    token, rest = value & ((1 << TOKEN_BITS) - 1), value >> TOKEN_BITS
    family, index = rest >> INDEX_BITS, rest & ((1 << INDEX_BITS) - 1)
    return f"{_NAMES[family]}[{index}]" + (f" of token {token - 1}" if token else "")


def with_token(values: I64, token: I64 | int, timeless: bool = False) -> I64:
    """Values of steps run for a token each (negative: outside the token loop). timeless: those of the caches keep
    theirs, because what a token appends is what later tokens read."""
    named = values != DONT_CARE
    if timeless:
        named &= ~np.isin(values >> FAMILY_SHIFT, [family_number(family) for family in CACHED])
    return values + np.where(named, token + 1, 0)
