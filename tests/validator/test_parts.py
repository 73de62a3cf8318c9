"""Parts of buffers that stand for others: by brute force, byte by byte."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from amk.validator.memory.position_abstraction import DELTA, END, FIRST, HI, LO, TURN, Alike, pieces
from amk.validator.program.system import DONT_CARE, I64, READ, WRITE

Bytes = dict[tuple[int, int], list[tuple[int, int, int, int]]]
"""By (buffer, byte), who touches it: (access, kind, value, delta)."""


def of_rows(rows: I64) -> Bytes:
    found: Bytes = defaultdict(list)
    for who, (buffer, kind, lo, hi, value, delta, times, step, turn) in enumerate(rows.tolist()):
        for k in range(times):
            for byte in range(lo + k * step, hi + k * step):
                found[buffer, byte].append((who, kind, value, delta + k * turn))
    return found


def of_parts(shown: I64, who: I64) -> Bytes:
    found: Bytes = defaultdict(list)
    for (buffer, kind, lo, hi, value, delta), one in zip(shown.tolist(), who.tolist(), strict=True):
        for byte in range(lo, hi):
            found[buffer, byte].append((one, kind, value, delta))
    return found


def signatures_of(memory: Bytes) -> set[tuple[int, tuple[tuple[int, int, int, int], ...]]]:
    """What a byte is touched by, up to one displacement for each value."""
    signatures = set()
    for (buffer, _), touches in memory.items():
        least = {value: min(t[3] for t in touches if t[2] == value) for _, _, value, _ in touches}
        own = {(who, kind, v, 0 if v == DONT_CARE else delta - least[v]) for who, kind, v, delta in touches}
        signatures.add((buffer, tuple(sorted(own))))
    return signatures


def random_rows(rng: np.random.Generator, size: int, count: int) -> I64:
    """Accesses to all rows, to some, to contiguous bytes, in steps of another size; a value may be displaced in two
    ways."""
    found = []
    for _ in range(int(rng.integers(1, 9))):
        lo = int(rng.integers(0, size))
        hi = int(rng.integers(lo + 1, size + 1))
        first, times = int(rng.integers(0, 2)) * int(rng.integers(0, count)), count
        value, delta = int(rng.choice([DONT_CARE, 7, 9])), int(rng.integers(0, 2)) * size
        match rng.integers(0, 5):
            case 0:  # contiguous
                lo, hi = sorted(rng.integers(0, size * count + 1, 2).tolist())
                lo, hi, times, step, turn = lo, max(hi, lo + 1), 1, 0, 0
            case 1:  # rows of another size
                step, turn, times = int(rng.integers(1, size)), 0, min(times, 3)
            case _:
                step, turn = size, int(rng.choice([0, 0, 0, size]))
                lo, hi, times = lo + first * size, hi + first * size, times - first
        found.append((0, int(rng.choice([READ, WRITE])), lo, hi, value, delta, times, step, turn))
    return np.array(found, np.int64)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_looked_at_is_what_every_byte_is_touched_by(seed: int) -> None:
    rng, fewer = np.random.default_rng(seed), 0
    for _ in range(150):
        size, count = int(rng.integers(3, 9)), int(rng.integers(2, 6))
        rows, sizes = random_rows(rng, size, count), np.array([size])
        found, of = pieces(rows, sizes)
        found[:, [FIRST, END]] -= (moved := int(rng.integers(0, 3)))  # where shared memory begins before its parts
        shown, at = Alike(found, sizes).of(found)
        shown[:, [LO, HI]] += moved * size
        shown[:, DELTA] += moved * found[at, TURN]
        every, kept = of_rows(rows), of_parts(shown, of[at])
        assert signatures_of(kept) == signatures_of(every)
        assert all({*touches} == {*every[byte]} for byte, touches in kept.items())
        fewer += len(kept) < len(every)
    assert fewer > 30


def test_a_value_that_is_displaced_in_two_ways_has_all_its_parts_looked_at() -> None:
    """Read where it was written in the first part, and beside it in the second."""
    write, read = (0, WRITE, 0, 4, 7, 0, 4, 4, 0), (0, READ, 0, 4, 7, 0, 4, 4, 4)
    rows = np.array([write, read], np.int64)
    found, _ = pieces(rows, np.array([4]))
    shown, _ = Alike(found, np.array([4])).of(found)
    assert sorted(shown[:, 2].tolist()) == [0, 0, 4, 4, 8, 8, 12, 12]
