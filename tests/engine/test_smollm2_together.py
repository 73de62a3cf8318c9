"""The real checkpoint on the device cpu: several texts at once, guesses of drafts made of it, and in several ways.

There is no smaller checkpoint with its tokens at hand, so the drafts are made of the model itself: its first layers,
and its weights in four bits again. What they accept says what such a draft is worth, not what a trained one is.

OMP_NUM_THREADS=1 python -m pytest tests/engine/test_smollm2_together.py --long --record FILE
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.engine.backends.forward import ForwardPass
from amk.engine.backends.forward_backend import ForwardBackend
from amk.engine.checkpoints.checkpoint import Checkpoint, Floats
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.generation.draft import Draft
from amk.engine.generation.speculation import speculating
from amk.weights.quantised import dequantised, nearest
from amk.weights.weight_format import weight_format
from tests.engine.test_smollm2_evidence import ANSWER_WITH_GUESSES, TASKS
from tests.prompts import PROMPTS

pytestmark = [pytest.mark.checkpoint, pytest.mark.long]

REPEATS, NEW, LAYERS = 3, 24, 24
ANSWER = 48
DRAFTED = ("code, continued", "prose, continued", "prose, summarised", "chat, planets")

Record = Callable[[str, Any], None]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> amk.LanguageModel:
    return amk.load(smollm2_path, device="cpu", max_context=2048)


class FirstLayers(Checkpoint):
    """The first layers of a checkpoint, its last norm and its output head."""

    def __init__(self, whole: Checkpoint, layers: int) -> None:
        super().__init__(whole.spec.model_copy(update={"layers": layers}), whole.path)
        self._whole = whole

    def _read(self, name: str, start: int, stop: int, out: Floats) -> None:
        self._whole.fill(name, out, start)


class InFourBits(Checkpoint):
    """Every matrix of a checkpoint but the embedding, rounded to the nearest codes of int4-g128."""

    def __init__(self, whole: Checkpoint) -> None:
        super().__init__(whole.spec, whole.path)
        self._whole = whole

    def _read(self, name: str, start: int, stop: int, out: Floats) -> None:
        self._whole.fill(name, out, start)
        if out.ndim == 2 and name not in ("embed", "lm_head"):
            form = weight_format("int4-g128")
            out[...] = dequantised(nearest(np.ascontiguousarray(out), form), form)


DRAFTS: dict[str, Callable[[Checkpoint], Checkpoint]] = {
    f"its first {LAYERS} of 30 layers": lambda whole: FirstLayers(whole, LAYERS),
    "its weights rounded to int4-g128": InFourBits,
}


@pytest.mark.parametrize("texts", [1, 2, 4, 8, 16])
def test_texts_at_once(model: amk.LanguageModel, texts: int, record_property: Record) -> None:
    """Tokens a second of processor time of so many chats, prompts left out; each is what it is alone."""
    backend = ForwardBackend(model._backend._forward, texts)  # type: ignore[attr-defined]
    several = amk.LanguageModel(model.spec, model.tokenizer, backend)
    prompts = [[{"role": "user", "content": text}] for text in PROMPTS[:texts]]
    options: dict[str, Any] = {"max_tokens": NEW, "ignore_eos": True}
    several.generate_all(prompts, max_tokens=1)
    rates, walls = list[float](), list[float]()
    for _ in range(REPEATS):
        before, begun = time.process_time(), time.perf_counter()
        found = several.generate_all(prompts, **options)
        rates.append(texts * NEW / (time.process_time() - before))
        walls.append(texts * NEW / (time.perf_counter() - begun))
    for name, values in (("tokens_per_processor_second", rates), ("tokens_per_second", walls)):
        spread = f"{min(values):.3g} to {max(values):.3g}"
        record_property(name, {"median": round(statistics.median(values), 1), "spread": spread, "runs": REPEATS})
    for prompt, each in zip(prompts[:2], found, strict=False):
        assert model.generate(prompt, **options).tokens == each.tokens


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "drawn"])
def test_drafts(model: amk.LanguageModel, name: str, drawn: bool, smollm2_path: Path, record_property: Record) -> None:
    """What is accepted of four guesses a pass, and equal texts."""
    forward = ForwardPass(DRAFTS[name](open_checkpoint(smollm2_path)), model.context)
    draft = Draft(ForwardBackend(forward), model.spec.vocab)
    guesses = speculating(model._backend, "draft", 4, draft)
    guessing = amk.LanguageModel(model.spec, model.tokenizer, model._backend, speculating=guesses)
    options: dict[str, Any] = {"max_tokens": ANSWER, "ignore_eos": True}
    options |= {"temperature": 0.8, "top_p": 0.95, "seed": 7} if drawn else {}
    for task in DRAFTED:
        prompt = model.encode(TASKS[task])
        guessing.generate(prompt, max_tokens=2)
        before = time.process_time()
        found = guessing.generate(prompt, **options)
        middle = time.process_time()
        assert found.tokens == model.generate(prompt, **options).tokens
        plain = time.process_time() - middle
        usage = found.usage
        figures = {"accepted_of_drafted": f"{usage.accepted_tokens} of {usage.drafted_tokens}"}
        figures["tokens_a_pass"] = str(round(usage.completion_tokens / usage.steps, 2))
        figures["times_as_fast"] = str(round(plain / (middle - before), 2))
        record_property(task, figures)


class WithRows(ForwardBackend):
    """Guesses as for a schedule whose step reads so many rows whether they are asked for or not."""

    def __init__(self, forward: ForwardPass, rows: int | None) -> None:
        super().__init__(forward)
        self.rows = rows  # type: ignore[assignment, misc]


@pytest.mark.parametrize(
    ("rows", "drawn"),
    [(8, False), (16, False), (16, True), (None, False)],
    ids=["8 rows, greedy", "16 rows, greedy", "16 rows, drawn", "device cpu, greedy"],
)
def test_branches(model: amk.LanguageModel, rows: int | None, drawn: bool, record_property: Record) -> None:
    """Tokens a pass of guesses by lookup in one way, in two and in three, of as many rows; None: as on the device cpu,
    where a pass of fewer rows takes less time, with tokens a second of processor time. The texts are equal."""
    backend = WithRows(model._backend._forward, rows)  # type: ignore[attr-defined]
    options: dict[str, Any] = {"max_tokens": ANSWER_WITH_GUESSES, "ignore_eos": True}
    options |= {"temperature": 0.8, "top_p": 0.95, "seed": 7} if drawn else {}
    steps, total = dict.fromkeys((1, 2, 3), 0), 0
    for task, text in TASKS.items():
        prompt, figures, texts = model.encode(text), dict[str, Any](), set[tuple[int, ...]]()
        for branches in steps:
            guesses = speculating(backend, "lookup", 7 if rows is None else rows - 1, branches=branches)
            guessing = amk.LanguageModel(model.spec, model.tokenizer, backend, speculating=guesses)
            guessing.generate(prompt, max_tokens=1)
            before = time.process_time()
            found = guessing.generate(prompt, **options)
            rate = round(ANSWER_WITH_GUESSES / (time.process_time() - before), 1)
            texts.add(found.tokens)
            usage, steps[branches] = found.usage, steps[branches] + found.usage.steps
            figures[f"{branches} ways"] = {
                "tokens_a_pass": round(usage.completion_tokens / usage.steps, 2),
                "accepted_of_drafted": f"{usage.accepted_tokens} of {usage.drafted_tokens}",
            } | ({"tokens_per_processor_second": rate} if rows is None else {})
        if rows is None:
            texts.add(model.generate(prompt, **options).tokens)
        assert len(texts) == 1, "guesses change no text"
        total += ANSWER_WITH_GUESSES
        record_property(task, figures)
    record_property("tokens_a_pass", {f"{ways} ways": round(total / count, 2) for ways, count in steps.items()})
