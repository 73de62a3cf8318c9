"""Hidden states out and embeddings in on a GPU: those of the device cpu, but for the rounding of bf16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import amk
from amk.lowering.launch import Device
from amk.targets.target import Target
from tests.engine import tiny_chat

pytestmark = pytest.mark.gpu

PROMPT = "ABABAB WAS ABABAB ABZ AB"


def test_states_and_embeddings_are_those_of_the_cpu(device: Device, gpu: Target, tmp_path: Path) -> None:
    directory = tiny_chat.write(tmp_path / "tiny")
    with (
        amk.load(directory, device="cpu", max_context=64) as exact,
        amk.load(directory, gpu=gpu.name, device="cuda", max_context=64, states=True) as model,
        amk.load(directory, gpu=gpu.name, device="cuda", max_context=64, prefill="kernel") as whole,
    ):
        rows = exact.embeddings(exact.encode(PROMPT))
        np.testing.assert_array_equal(model.embeddings(model.encode(PROMPT)), rows)
        for prompt in (PROMPT, rows, rows[::-1] + np.float32(0.5)):
            for found, wanted in ((model.hidden, exact.hidden), (model.logits, exact.logits)):
                one, other = found(prompt), wanted(prompt)
                np.testing.assert_allclose(one, other, atol=0.03 * np.abs(other).max())
                np.testing.assert_array_equal(one, found(prompt), err_msg="two runs differ")
        np.testing.assert_array_equal(model.logits(rows), model.logits(PROMPT))
        np.testing.assert_allclose(
            model.logits(PROMPT), whole.logits(PROMPT), atol=0.02 * np.abs(whole.logits(PROMPT)).max()
        )
        answer = model.generate(PROMPT, max_tokens=8, ignore_eos=True).tokens
        assert model.generate(rows, max_tokens=8, ignore_eos=True).tokens == answer
        text = [*(int(token) for token in model.encode(PROMPT)), *answer]
        assert model.logits(text).argmax(-1)[-9:-1].tolist() == list(answer)
