"""Random weights: reproducible by row, of the right scale, exact in bfloat16."""

import time
from pathlib import Path

import numpy as np
import pytest

from amk.engine.checkpoints.random_checkpoint import random_checkpoint
from amk.models.model import ModelSpec, load_model
from tests.engine import tiny_model

PINNED = np.array([-0.5078125, -0.96484375, -1.15625, 0.25], np.float32)


@pytest.fixture
def tiny(tmp_path: Path) -> ModelSpec:
    tiny_model.write_config(tmp_path / "tiny")
    return load_model(str(tmp_path / "tiny"))


def test_a_slice_equals_the_whole_across_block_boundaries() -> None:
    checkpoint = random_checkpoint(load_model("llama3-8b"), seed=5)
    whole = checkpoint.tensor("l31.wk")
    for rows in (slice(0, 1), slice(63, 65), slice(127, 300), slice(1000, 1024), slice(7, 7)):
        np.testing.assert_array_equal(checkpoint.tensor("l31.wk", rows), whole[rows])


def test_seed_and_name_decide_the_values(tiny: ModelSpec) -> None:
    first, again, other = (random_checkpoint(tiny, seed) for seed in (1, 1, 2))
    for name in first.shapes:
        np.testing.assert_array_equal(first.tensor(name), again.tensor(name))
        assert not np.array_equal(first.tensor(name), other.tensor(name))
    assert not np.array_equal(first.tensor("l0.w_up"), first.tensor("l0.w_gate"))


def test_values_are_pinned(tiny: ModelSpec) -> None:
    """The generator is part of recorded runs: a change of its numbers must not go unnoticed."""
    found = random_checkpoint(tiny, seed=0).tensor("l0.wq", slice(2, 3))[0, :4] * 16
    np.testing.assert_array_equal(found, PINNED)


def test_weights_are_normal_scaled_and_exact_in_bfloat16(tiny: ModelSpec) -> None:
    checkpoint = random_checkpoint(tiny, seed=0)
    for name, shape in checkpoint.shapes.items():
        values = checkpoint.tensor(name)
        assert not np.any(values.view(np.uint32) & 0xFFFF), f"{name} is not exact in bfloat16"
        if len(shape) == 2:
            assert abs(values.mean()) < 4 * values.std() / np.sqrt(values.size)
            depth = 2 * tiny.layers if name.endswith((".wo", ".w_down")) else 1
            assert 0.7 < values.std() * np.sqrt(shape[1] * depth) < 1.45
            within = np.mean(np.abs(values) < values.std())
            assert abs(within - 0.6827) < 0.01
        else:
            assert abs(values.mean() - 1) < 0.05 and 0.08 < values.std() < 0.17


def test_a_thin_slice_of_a_large_model_is_immediate() -> None:
    checkpoint = random_checkpoint(load_model("llama3-8b"), seed=0)
    checkpoint.tensor("final_norm")  # builds the quantile table
    start = time.process_time()
    for layer in range(32):
        checkpoint.tensor(f"l{layer}.w_down", slice(4000, 4004))
    assert time.process_time() - start < 2.0
