"""Steps of other workers that meet, found row by row, are those that a look at every two rows finds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from amk.validator.evidence import other_witnesses as rivals
from amk.validator.program.system import I64, WRITE


def drawn(rng: np.random.Generator) -> I64:
    """(worker, warp, event, buffer, lo, hi, kind)"""
    n = int(rng.integers(0, 20))
    small = [rng.integers(0, upto, n) for upto in (4, 3, 9, 3, 20)]
    return np.column_stack((*small, small[-1] + rng.integers(1, 6, n), rng.integers(0, 2, n)))


def meeting(one: I64, two: I64) -> list[tuple[int, int]]:
    """By the definition."""
    found = []
    for (i, x), (j, y) in product(enumerate(one.tolist()), enumerate(two.tolist())):
        touch = x[3] == y[3] and max(x[4], y[4]) < min(x[5], y[5])
        if touch and x[:2] != y[:2] and WRITE in (x[6], y[6]):
            found.append((i, j))
    return found


@pytest.mark.parametrize("pairs", [rivals.PAIRS, 7])
def test_rows_that_meet_are_all_found_in_order(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "PAIRS", pairs)
    rng, seen = np.random.default_rng(1), 0
    for _ in range(400):
        one, two = drawn(rng), drawn(rng)
        i, j = rivals._meeting(one, two)
        assert list(zip(i.tolist(), j.tolist(), strict=True)) == meeting(one, two)
        seen += len(i) > 1
    assert seen > 200
