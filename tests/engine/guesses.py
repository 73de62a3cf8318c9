"""What the tests of steps that accept guesses share with those of trees, on a GPU or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import amk
from amk.adversary.neighbourhood.bases import CONTEXT, SMALLEST
from amk.planner.decode import plan
from amk.planner.settings import Settings
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target


def small_plan(settings: Settings, of_model: dict[str, Any] | None = None, **changes: Any) -> Schedule:
    """Of one layer, two workers and a context of a few steps."""
    changed = replace(settings, warps=2, kv_block=4, max_tokens=12, max_ring_bytes=16384, **changes)
    model = SMALLEST.model_copy(update={"layers": 1} | (of_model or {}))
    return plan(model, load_target("h200"), settings=changed, workers=2, max_context=CONTEXT)


def guessed(
    right: Sequence[int], counts: Sequence[int], rows: int, vocab: int, start: int = 0
) -> tuple[list[int], int]:
    """A text whose guesses are right as far as so many rows of each step count, and where its last step ends."""
    guesses, at = [*right], start
    for count in counts:
        at += count
        guesses[at] = guesses[at] if count == rows else (right[at] + 1) % vocab
    return guesses, at


def check_same_answers(plain: amk.LanguageModel, guessing: amk.LanguageModel, prompt: str) -> None:
    """Greedy and drawn, up to the end of the context, and in a second turn."""
    for drawn in ({}, {"temperature": 0.8, "top_k": 20, "seed": 11}, {"logprobs": 1}):
        asked: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True} | drawn
        wanted, found = plain.generate(prompt, **asked), guessing.generate(prompt, **asked)
        assert found.tokens == wanted.tokens
        assert found.usage.drafted_tokens > 0
        longer = [*map(int, plain.encode(prompt)), *wanted.tokens[:4]]
        assert guessing.generate(longer, **asked).tokens == plain.generate(longer, **asked).tokens
