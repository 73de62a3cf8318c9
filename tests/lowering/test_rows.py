"""Rows of a batch as rows.cuh copies them: every run of 8 elements once, and in the order that gemv reads."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from amk.lowering.compile import compile_cuda

UNIT, IN_FLIGHT = 8, 16
COUNTS = (64, 128, 256, 448, 512, 896, 1024, 1536, 1792, 2048, 4096)
BATCHES = range(2, 9)


def shape(count: int, batch: int) -> tuple[int, int, int, int]:
    """(lanes of a row, pieces, turns, turns in flight together); no lanes: rows.cuh does not copy such a share."""
    lanes = next((n for n in (32, 16, 8) if count % (n * UNIT) == 0 and batch % (32 // n) == 0), 0)
    if not lanes:
        return 0, 1, batch, next(n for n in range(batch, 0, -1) if n <= IN_FLIGHT and batch % n == 0)
    pieces, turns = count // (lanes * UNIT), batch * lanes // 32
    together = next((n for n in range(turns, 1, -1) if turns % n == 0 and n * pieces <= IN_FLIGHT), 1)
    return lanes, pieces, turns, together


def test_the_device_code_divides_shares_so() -> None:
    lines = ['#include "amk/rows.cuh"']
    for count, batch in product(COUNTS, BATCHES):
        lanes, pieces, turns, together = shape(count, batch)
        share = f"amk::RowShare<{count}, {batch}>"
        wanted = {"kLanes": lanes, "kPieces": pieces, "kTurns": turns, "kTogether": together}
        lines += [f'static_assert({share}::{name} == {n}, "{count}, {batch}");' for name, n in wanted.items()]
    compile_cuda("\n".join(lines), "sm_90a", use_cache=False)


@pytest.mark.parametrize("batch", BATCHES)
def test_every_run_of_every_row_is_copied_once(batch: int) -> None:
    for count in COUNTS:
        lanes, pieces, turns, together = shape(count, batch)
        if not lanes:
            continue
        assert pieces * together <= IN_FLIGHT or together == 1
        found = np.zeros((batch, count // UNIT), int)
        for turn, piece, lane in product(range(turns), range(pieces), range(32)):
            found[turn * (32 // lanes) + lane // lanes, piece * lanes + lane % lanes] += 1
        np.testing.assert_array_equal(found, 1, err_msg=f"{count} columns of {batch} rows")


def x_place(i: int) -> int:
    """context.cuh."""
    return (i & ~6) | (i & 2) << 1 | (i & 4) >> 1


def test_places_of_a_staged_vector() -> None:
    """The second and the third pair of a run change places; write_run relies on what follows."""
    pairs = [x_place(i) for i in range(16)]
    assert pairs == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    for i in range(0, 64, 4):
        assert x_place(i + 2) == x_place(i) + 4
    run = np.arange(8)
    placed = np.empty(8, int)
    placed[[x_place(i) for i in range(8)]] = run
    np.testing.assert_array_equal(placed.reshape(4, 2)[[0, 2, 1, 3]].reshape(-1), run)
