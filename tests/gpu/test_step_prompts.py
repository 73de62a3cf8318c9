"""Prompts that a kernel of several rows reads on the GPU are continued as those that the kernel of one row reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.lowering.launch import Device
from amk.targets.target import Target
from tests.engine import tiny_chat

pytestmark = pytest.mark.gpu

ROUNDING = {"bf16": 2.0**-7, "int8": 2.0**-5}
"""Of logits, relative to the largest: one step of bf16, and where weights are codes four, because vectors of several
rows are in bf16 and those of one have 16 bits."""


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_logits_behind_prompts_are_those_of_single_steps(
    torch_gpu: Device, gpu: Target, tmp_path: Path, dtype: Any
) -> None:
    """Prompts of part of a step, of several, up to the end of the context, and turns that go on."""
    options: dict[str, Any] = {"gpu": gpu.name, "max_context": 96, "dtype": dtype}
    directory = tiny_chat.write(tmp_path / "tiny")
    with (
        amk.load(directory, **options, prefill="kernel") as single,
        amk.load(directory, **options, prefill="rows") as steps,
    ):
        for length in (1, 2, 31, 33, 34, 66, 96):
            prompt = [(5 * n + length) % 60 for n in range(length)]
            wanted, found = (np.asarray(model.logits(prompt, last=True)) for model in (single, steps))
            assert np.abs(found - wanted).max() <= ROUNDING[dtype] * np.abs(wanted).max()
            assert len(steps.generate(prompt[:90], max_tokens=4, ignore_eos=True).tokens) == 4
