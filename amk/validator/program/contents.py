"""What bytes hold, as numbers: value families, indices and tokens packed into one (see `slopes`).

Families have numbers that follow from their names alone, so rows mean the same in every schedule.
"""

from __future__ import annotations

from functools import cache
from typing import Final
from zlib import crc32

import numpy as np

from amk.validator.program.slopes import INDEX_BITS, TOKEN_BITS
from amk.validator.program.system import DONT_CARE, I64

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
    return (family_number(family.removesuffix(".past")) << INDEX_BITS | index) << TOKEN_BITS


def family_name(value: int) -> str:
    """For people: `h[3] of token 1`."""
    if value == DONT_CARE:
        return "unnamed content"
    token, rest = value & ((1 << TOKEN_BITS) - 1), value >> TOKEN_BITS
    family, index = rest >> INDEX_BITS, rest & ((1 << INDEX_BITS) - 1)
    return f"{_NAMES[family]}[{index}]" + (f" of token {token - 1}" if token else "")


def with_token(values: I64, token: int, tokenless: I64) -> I64:
    """Values of a step run for `token` (negative: outside the token loop); families in `tokenless` keep theirs."""
    if token < 0:
        return values
    family = values >> (TOKEN_BITS + INDEX_BITS)
    plain = (values == DONT_CARE) | (family[..., None] == tokenless).any(axis=-1)
    return np.where(plain, values, values + token + 1)
