"""How rows change from one layer to the next, and how rows name their contents.

A value packs (family, index, token), in this order. A slope holds for all rows of a buffer, kind and family.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from amk.validator.system import I64

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
