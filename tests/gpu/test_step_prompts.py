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

ROUNDING = {"bf16": 2.0**-6, "int8": 2.0**-5}
"""Of logits, relative to the largest: two steps of bf16, as each of two kernels is about one off, and where weights are
codes four, because vectors of several rows are in bf16 and those of one have 16 bits."""


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


def test_first_tokens_are_chosen_from_the_logits_behind_the_prompt(
    torch_gpu: Device, gpu: Target, tmp_path: Path
) -> None:
    """By the step that reads the end of the prompt: the largest, and one that a bias makes the largest, behind a cache
    that is used again. What follows is what the schedule of one row says behind the same text."""
    options: dict[str, Any] = {"gpu": gpu.name, "max_context": 128}
    directory = tiny_chat.write(tmp_path / "tiny")
    with (
        amk.load(directory, **options, prefill="kernel") as single,
        amk.load(directory, **options, prefill="rows") as steps,
    ):
        text: list[int] = []
        for length in (31, 33, 64, 65, 120):
            text = [*text, *((5 * n + length) % 60 for n in range(len(text), length))]
            logits = np.asarray(steps.logits(text, last=True)).reshape(-1)
            ways: list[tuple[dict[str, Any], int]] = [
                ({}, int(logits.argmax())),
                ({"logit_bias": {7: 1000.0}}, 7),
            ]
            for words, first in ways:
                steps.logits([1], last=True)  # another text
                steps.logits(text[: length // 3], last=True)  # whose cache is used again
                found = steps.generate(text, max_tokens=3, ignore_eos=True, **words).tokens
                assert found[0] == first
                behind = [np.asarray(model.logits([*text, first], last=True)) for model in (single, steps)]
                assert np.abs(behind[1] - behind[0]).max() <= ROUNDING["bf16"] * np.abs(behind[0]).max()
