"""The published known answers of Philox4x32-10 (Random123, kat_vectors)."""

from __future__ import annotations

import numpy as np
import pytest

from amk.schedule_ir.philox import philox

ALL = 0xFFFFFFFF
KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL, ALL), (ALL, ALL, ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("key", "counter", "words"), KNOWN)
def test_known_answers(key: tuple[int, int], counter: tuple[int, ...], words: tuple[int, ...]) -> None:
    a, b, c, d = (np.array([word], np.uint64) for word in counter)
    assert tuple(int(word[0]) for word in philox(key, (a, b, c, d))) == words


def test_counters_are_independent_of_their_neighbours() -> None:
    row = np.arange(1000, dtype=np.uint64)
    zero = np.zeros_like(row)
    together = philox((1, 2), (row, zero, zero, zero))[0]
    alone = [int(philox((1, 2), (row[i : i + 1], zero[:1], zero[:1], zero[:1]))[0][0]) for i in (0, 500, 999)]
    assert together[[0, 500, 999]].tolist() == alone
    assert len(set(together.tolist())) == 1000
