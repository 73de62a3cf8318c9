"""Stable orders of whole numbers, as `argsort` and `lexsort` give them, in a tenth of the time.

Keys within 16 bits are sorted by numpy, digit by digit. Of others, a key and the place that it comes from are packed
into one number, and these, all different, are sorted by value, which vector instructions are quick at. Keys that are
too large for that are left to numpy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from amk.validator.program.system import I64

FEW: Final = 256
"""So few are sorted by numpy."""
ROOM: Final = 1 << 62
SHORT: Final = 1 << 16
"""So many different keys are sorted in linear time."""


def by_key(keys: I64) -> I64:
    """As `np.argsort(keys, kind="stable")`."""
    count = len(keys)
    if count < FEW:
        return np.argsort(keys, kind="stable")
    if bool((keys[1:] >= keys[:-1]).all()):
        return np.arange(count)
    low, high, bits = int(keys.min()), int(keys.max()), count.bit_length()
    if (high - low + 1) << bits >= ROOM:
        return np.argsort(keys, kind="stable")
    packed: I64 = np.subtract(keys, low, dtype=np.int64)
    if high - low < SHORT:
        return packed.astype(np.uint16).argsort(kind="stable")
    packed <<= bits
    packed |= np.arange(count)
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def by_keys(*keys: I64) -> I64:
    """As `np.lexsort(keys)`: the last key is the first to decide."""
    joined, size = np.zeros(len(keys[0]), np.int64), 1
    if not len(joined):
        return joined
    for key in keys:
        low, high = int(key.min()), int(key.max())
        if size * (high - low + 1) >= ROOM:
            return np.lexsort(keys)
        joined += np.subtract(key, low, dtype=np.int64) * size
        size *= high - low + 1
    return by_key(joined)


def distinct(rows: I64) -> I64:
    """As `np.unique(rows, axis=0)`, in a fraction of the time."""
    ordered = rows.take(by_keys(*rows.T[::-1]), axis=0)
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    found: I64 = ordered[fresh]
    return found
