"""Vectors in blocks that share a power of two: never coarser than bf16 where it matters, whatever the outliers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.weights.bfloat import F32, round_bf16
from amk.weights.block_point import BLOCK, block_scales, block_sums, round_digits, round_halves

DRAW = np.random.default_rng(11)
COUNT = 64 * BLOCK


def outliers(values: NDArray[np.floating]) -> F32:
    """One element in a hundred a thousand times larger."""
    return np.asarray(values * np.where(DRAW.random(values.size) < 0.01, 1000, 1), np.float32)


VECTORS: dict[str, F32] = {
    "normal": DRAW.standard_normal(COUNT).astype(np.float32),
    "heavy tails": np.asarray(DRAW.standard_t(1.5, COUNT), np.float32),
    "normal with outliers": outliers(DRAW.standard_normal(COUNT)),
    "an outlier in every block": np.asarray(
        DRAW.standard_normal(COUNT) * np.where(np.arange(COUNT) % BLOCK == 5, 1000, 1), np.float32
    ),
    "tiny": np.asarray(DRAW.standard_normal(COUNT) * 1e-30, np.float32),
    "huge": np.asarray(DRAW.standard_normal(COUNT) * 1e30, np.float32),
}


def distance(a: F32, b: F32) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64)))


@pytest.mark.parametrize("name", VECTORS)
def test_blocks_are_at_least_three_times_closer_than_bf16(name: str) -> None:
    x = VECTORS[name]
    rounding = distance(round_bf16(x), x)
    assert distance(round_digits(x), x) < rounding / 3
    assert distance(round_halves(x), x) < rounding / 3


@pytest.mark.parametrize("name", VECTORS)
def test_every_element_is_within_its_bound(name: str) -> None:
    x = VECTORS[name].astype(np.float64).reshape(-1, BLOCK)
    peak = np.abs(x).max(axis=1, keepdims=True)
    assert (np.abs(round_digits(VECTORS[name]).reshape(x.shape) - x) <= peak * 2.0**-14.9).all()
    small = peak * 2.0**-29
    assert (np.abs(round_halves(VECTORS[name]).reshape(x.shape) - x) <= np.maximum(np.abs(x) * 2.0**-11, small)).all()


@pytest.mark.parametrize("run", [4, 16])
@pytest.mark.parametrize("name", VECTORS)
def test_runs_of_blocks_with_one_scale_are_closer_than_bf16_and_within_their_bound(name: str, run: int) -> None:
    x = VECTORS[name]
    rounding, found = distance(round_bf16(x), x), round_digits(x, run)
    assert distance(found, x) < rounding
    assert distance(round_halves(x, run), x) < rounding / 3
    for part, near in zip(np.split(x, COUNT // BLOCK // run), np.split(found, COUNT // BLOCK // run), strict=True):
        assert distance(near, part) <= np.sqrt(part.size) / 32512 * np.linalg.norm(part.astype(np.float64))
    scales = block_scales(x, run).reshape(-1, run)
    assert (scales == scales[:, :1]).all() and (scales >= block_scales(x).reshape(-1, run)).all()
    assert (scales[:, 0] == block_scales(x).reshape(-1, run).max(axis=1)).all()


def test_numbers_fit_two_digits_and_scales_are_powers_of_two() -> None:
    x = np.concatenate([VECTORS["heavy tails"], np.repeat(np.float32([2 - 2.0**-22, 1, 1.9921875, 1.984375]), BLOCK)])
    scales = block_scales(x)
    assert (np.frexp(scales)[0] == 0.5).all()
    numbers = np.abs(round_digits(x).reshape(-1, BLOCK) / scales[:, None]).max(axis=1)
    assert numbers.max() <= 32512 and numbers.min() >= 16255


def test_what_is_not_finite_is_not_hidden() -> None:
    x = np.ones(4 * BLOCK, np.float32)
    x[3], x[BLOCK + 1], x[2 * BLOCK + 7] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(np.isnan(block_scales(x)), [True, True, True, False])


def test_zeros_stay_zero_and_the_smallest_numbers_vanish() -> None:
    x = np.zeros(2 * BLOCK, np.float32)
    x[BLOCK] = 2.0**-140
    assert not round_digits(x).any() and not round_halves(x)[:BLOCK].any() and np.isfinite(block_scales(x)).all()


def test_sums_are_those_of_the_digits() -> None:
    x = VECTORS["normal with outliers"]
    exact = round_digits(x).astype(np.float64).reshape(-1, BLOCK).sum(axis=1)
    np.testing.assert_allclose(block_sums(x), exact, rtol=2.0**-24)
