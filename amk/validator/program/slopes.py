"""How rows change from one layer to the next, and how rows name their contents.

A value packs (family, index, token), in this order. A slope holds for all rows of a buffer, kind and family.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from amk.validator.program.system import I64

TOKEN_BITS: Final = 21
INDEX_BITS: Final = 20
FAMILY_SHIFT: Final = TOKEN_BITS + INDEX_BITS

Slope = dict[tuple[int, int, int], tuple[int, int]]
"""(buffer, kind, family) -> change of (byte, value index) per layer."""


def extend(slope: Slope, now: I64, then: I64) -> bool:
    """Adds the differences of aligned rows; False if two rows of one key differ in slope or anything else changed."""
    fixed = (now[:, [0, 1, 5]] == then[:, [0, 1, 5]]).all() and (np.diff(now[:, 2:4]) == np.diff(then[:, 2:4])).all()
    family = (now[:, 4] >> FAMILY_SHIFT == then[:, 4] >> FAMILY_SHIFT).all()
    if not fixed or not family:
        return False
    step = np.stack((then[:, 2] - now[:, 2], (then[:, 4] >> TOKEN_BITS) - (now[:, 4] >> TOKEN_BITS)), axis=1)
    for row, change in zip(now.tolist(), step.tolist(), strict=True):
        key = (row[0], row[1], row[4] >> FAMILY_SHIFT)
        if slope.setdefault(key, (change[0], change[1])) != (change[0], change[1]):
            return False
    return True


def slope_of(pairs: list[tuple[I64, I64]]) -> tuple[Slope | None, bool]:
    """Of rows in a layer and the next, all shared buffers (those below 0) as one; None if there is none.

    Also: is it the same wherever shared buffers lie, where rows count bytes from the start of each? Not if a row names
    another one in the next layer.
    """
    slope: Slope = {}
    regular = anywhere = True
    for now, then in pairs:
        if now.shape != then.shape:
            regular = False
            continue
        anywhere &= np.array_equal(now[:, 0], then[:, 0])
        regular = regular and extend(slope, _merged(now), _merged(then))
    return slope if regular else None, anywhere


def _merged(rows: I64) -> I64:
    merged = rows.copy()
    np.maximum(rows[:, 0], -1, out=merged[:, 0])
    return merged
