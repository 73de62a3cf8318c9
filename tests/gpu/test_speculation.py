"""Guesses that a schedule of several rows verifies on the GPU change no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import amk
from amk.lowering.launch import Device
from amk.targets.target import Target
from tests.engine import tiny_chat

pytestmark = pytest.mark.gpu

PROMPT = "ABABAB WAS ABABAB"


@pytest.mark.parametrize("draft_tokens", [1, 7])
def test_guesses_change_no_answer(torch_gpu: Device, gpu: Target, tmp_path: Path, draft_tokens: int) -> None:
    """Greedy and drawn, up to the end of the context, and in a second turn."""
    options: dict[str, Any] = {"gpu": gpu.name, "max_context": 64, "prefill": "kernel"}
    directory = tiny_chat.write(tmp_path / "tiny")
    with (
        amk.load(directory, **options) as plain,
        amk.load(directory, **options, speculate="lookup", draft_tokens=draft_tokens) as guessing,
    ):
        for drawn in ({}, {"temperature": 0.8, "top_k": 20, "seed": 11}):
            asked = {"max_tokens": 100, "ignore_eos": True} | drawn
            wanted, found = plain.generate(PROMPT, **asked), guessing.generate(PROMPT, **asked)
            assert found.tokens == wanted.tokens
            assert found.usage.drafted_tokens > 0
            assert found.usage.steps + found.usage.accepted_tokens == len(found.tokens)
            longer = [*plain.encode(PROMPT), *wanted.tokens[:4]]
            assert guessing.generate(longer, **asked).tokens == plain.generate(longer, **asked).tokens


def test_the_guesses_of_a_draft_change_no_answer(torch_gpu: Device, gpu: Target, tmp_path: Path) -> None:
    """Two schedules on one GPU take turns: the draft's draws tokens where it runs, the other one verifies them."""
    options: dict[str, Any] = {"gpu": gpu.name, "max_context": 64, "prefill": "kernel"}
    directory = tiny_chat.write(tmp_path / "tiny")
    draft = tiny_chat.write(tmp_path / "draft", noise=0.02)
    with (
        amk.load(directory, **options) as plain,
        amk.load(directory, **options, draft=draft, draft_tokens=3) as guessing,
    ):
        for drawn in ({}, {"temperature": 0.8, "top_k": 20, "seed": 11}, {"logprobs": 1}):
            asked = {"max_tokens": 100, "ignore_eos": True} | drawn
            wanted, found = plain.generate(PROMPT, **asked), guessing.generate(PROMPT, **asked)
            assert found.tokens == wanted.tokens
            assert 0 < found.usage.accepted_tokens <= found.usage.drafted_tokens
