"""Products of few and of many rows: the same numbers, and each of few rows as if it were alone."""

from __future__ import annotations

import os

import numpy as np
import pytest

from amk.engine.backends import products


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("out", [1, 2, 50])
def test_products(out: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SHARE", 400)
    monkeypatch.setattr(products, "threads", lambda: threads)
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((out, 37)).astype(np.float32)
    for rows in (1, 2, products.FEW, products.FEW + 1, products.SOME + 1):
        x = rng.standard_normal((rows, 37)).astype(np.float32)
        found = products.product(x, matrix)
        assert found.shape == (rows, out) and found.dtype == np.float32 and found.flags.c_contiguous
        np.testing.assert_allclose(found, x.astype(np.float64) @ matrix.astype(np.float64).T, rtol=1e-4, atol=1e-4)
        if rows <= products.FEW:
            np.testing.assert_array_equal(found, [products.product(x[row : row + 1], matrix)[0] for row in range(rows)])


@pytest.mark.parametrize(("threads", "expected"), [("3", 3), ("0", 1), ("many", None), (None, None)])
def test_threads_are_as_many_as_the_libraries_take(
    threads: str | None, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:

    if threads is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert products.threads.__wrapped__() == (expected or len(os.sched_getaffinity(0)))
