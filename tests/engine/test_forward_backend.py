"""Texts that the device cpu computes together: each is what it is alone, however many come and go beside it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.engine.backends import forward_backend
from amk.engine.backends.forward import ForwardPass, Part
from amk.engine.backends.forward_backend import ForwardBackend
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY, Sampling
from tests.cases import cases
from tests.engine import tiny_chat
from tests.engine.test_forward import MODELS, Arrays
from tests.engine.tiny import tiny_model

CONTEXT = 48
LENGTHS = (1, 30, 3, 12, 7)


def backend(name: str = "plain", texts: int = 3) -> ForwardBackend:
    return ForwardBackend(ForwardPass(Arrays(tiny_model(**MODELS[name])), CONTEXT), texts)


def prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(83) for _ in range(length)]


def at_once(backend: ForwardBackend, calls: Sequence[Any]) -> list[Any]:
    """What the calls give, each in a thread, the first pass for all of them."""
    backend._expected, backend._patience = len(calls), 0.3
    with ThreadPoolExecutor(len(calls)) as pool:
        tasks = [pool.submit(call) for call in calls]
        return [task.result() for task in tasks]


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("block", [256, 8])
def test_logits_are_bitwise_those_of_the_text_alone(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of one block and of several, rows of products of each kind, logits of all tokens and of a tree."""
    monkeypatch.setattr(forward_backend, "BLOCK", block)
    texts = [prompt(seed, length) for seed, length in enumerate(LENGTHS)]
    asked: list[Any] = [
        lambda of: of.logits(texts[0]),
        lambda of: of.every(texts[1], 4),
        lambda of: of.states(texts[2]),
        lambda of: of.branches(texts[3], [5, 6, 7], [-1, 0, 0]),
        lambda of: of.every(texts[4], 1),
    ]
    together = backend(name, len(asked))
    found = at_once(together, [lambda ask=ask: ask(together) for ask in asked])
    for ask, rows in zip(asked, found, strict=True):
        np.testing.assert_array_equal(rows, ask(backend(name, 1)))


def test_texts_share_passes_though_one_begins_while_the_other_is_computed() -> None:
    together, sizes = backend(), list[int]()
    together._patience = 30.0
    read, begun = together._forward.read, threading.Event()

    def counted(parts: Sequence[Part]) -> list[Any]:
        sizes.append(len(parts))
        if len(sizes) == 6:  # behind it the first text is gone, and the other would wait for it
            together._patience = 0.0
        begun.set()
        end = time.monotonic() + 20
        while len(together._asks) < 2 and len(sizes) == 1 and time.monotonic() < end:
            time.sleep(0.001)
        return read(parts)

    together._forward.read = counted  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(answer, together, prompt(1, 5), 6)
        assert begun.wait(20)
        second = pool.submit(answer, together, prompt(2, 9), 6)
        found = [first.result(), second.result()]
    assert found == [answer(backend(texts=1), prompt(1, 5), 6), answer(backend(texts=1), prompt(2, 9), 6)]
    assert sizes == [1, 2, 2, 2, 2, 2, 1]


def answer(of: ForwardBackend, text: Sequence[int], count: int, sampling: Sampling = GREEDY) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += of.extend([*text, *found], count - len(found), sampling, ())
    return found


@pytest.mark.parametrize("seed", range(cases(2, 8)))
def test_texts_that_come_and_go_are_what_they_are_alone(seed: int) -> None:
    """More texts than places, some of them with a common beginning, at random times, drawn or not."""
    rng, together, alone = random.Random(seed), backend(texts=3), backend(texts=1)
    texts = [[*prompt(seed, rng.randint(0, 12)), *prompt(n, rng.randint(1, 12))] for n in range(12)]
    draws = [Sampling(0.9, 20, 0.95, seed=n) if n % 3 == 2 else GREEDY for n in range(12)]
    counts = [rng.randint(1, 20) for _ in range(12)]

    def run(number: int) -> list[int]:
        time.sleep(rng.random() * 0.01)
        return answer(together, texts[number], counts[number], draws[number])

    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(run, range(12)))
    assert found == [answer(alone, *each) for each in zip(texts, counts, draws, strict=True)]


def test_a_pass_that_fails_fails_its_texts_and_no_later_one() -> None:
    together = backend()
    read = together._forward.read

    def failing(parts: Sequence[Part]) -> list[Any]:
        together._forward.read = read  # type: ignore[method-assign]
        raise RuntimeError("lost")

    together._forward.read = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="lost"):
        together.logits([1, 2, 3])
    np.testing.assert_array_equal(together.logits([1, 2, 3]), backend().logits([1, 2, 3]))


@pytest.mark.turns(4)
def test_a_model_answers_several_prompts_at_once(tmp_path: Path) -> None:
    directory = tiny_chat.write(tmp_path / "tiny")
    prompts = ["ONE", [5, 6, 7], [{"role": "user", "content": "HI"}], "TWO TWO"]
    with (
        amk.load(directory, device="cpu", batch=3, max_context=96) as several,
        amk.load(directory, device="cpu", max_context=96) as one,
    ):
        assert (several.sequences, one.sequences) == (3, 1)
        for options in ({}, {"temperature": 0.9, "seed": 3}, {"logit_bias": {40: 2.0}}):
            arguments: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True} | options
            found = several.generate_all(prompts, **arguments)
            wanted = [one.generate(prompt, **arguments) for prompt in prompts]
            assert [each.tokens for each in found] == [each.tokens for each in wanted]
        for mine, theirs in zip(*(model.score("ONE", ["TWO", "THREE"]) for model in (several, one)), strict=True):
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    with pytest.raises(AmkError, match="AMK016"):
        amk.load(directory, device="cpu", batch=17)
