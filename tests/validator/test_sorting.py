"""Orders of whole numbers are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from amk.validator.program.sorting import FEW, SHORT, by_key, by_keys, distinct

SPANS = (
    (0, 2), (0, 50), (-7, 7), (-9, SHORT - 9), (0, 10**6), (-(2**40), 2**40), (-(2**62), 2**62), (-(2**63), 2**63 - 1)
)  # fmt: skip


@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("count", [0, 1, FEW - 1, FEW, 5000])
def test_a_key_orders_as_a_stable_argsort(span: tuple[int, int], count: int) -> None:
    rng = np.random.default_rng(count)
    keys = rng.integers(*span, count)
    for one in (keys, np.sort(keys), np.sort(keys)[::-1], keys.astype(np.int32)):
        assert np.array_equal(by_key(one), np.argsort(one, kind="stable"))


@pytest.mark.parametrize("size", [SHORT - 1, SHORT, SHORT + 1])
def test_keys_that_just_fit_in_few_bits_are_told_apart(size: int) -> None:
    keys = np.tile([-3, size - 4, 5, 5], FEW)
    assert np.array_equal(by_key(keys), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("count", [0, 1, FEW, 5000])
def test_keys_order_as_lexsort(span: tuple[int, int], count: int) -> None:
    rng = np.random.default_rng(count)
    few, many, bits = rng.integers(-3, 3, count), rng.integers(*span, count), rng.integers(0, 2, count) > 0
    for keys in ((many,), (few, many), (many, few), (many, many[::-1], few), (few.astype(np.int32), bits, few[::-1])):
        assert np.array_equal(by_keys(*keys), np.lexsort(keys))


@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (FEW, 2), (3000, 3)])
def test_rows_are_distinct_as_numpy_says(span: tuple[int, int], shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(shape[0]).integers(*span, shape)
    for one in (rows, np.concatenate((rows, rows[::-1])), rows % 3):
        assert np.array_equal(distinct(one), np.unique(one, axis=0))
