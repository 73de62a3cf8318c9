"""Texts that are computed together, that come and go: each gets what it would get alone."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import amk
from amk.engine.backends.choice import choose
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.live_backend import LiveBackend
from amk.engine.backends.schedule_backend import ScheduleBackend
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY, Mode, Sampling
from tests.cases import cases
from tests.engine import tiny_chat
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

MODEL = tiny_model(layers=1, kv_heads=1)
CONTEXT = 16
SETTINGS = {"workers": 3, "context": CONTEXT, "warps": 2, "kv_block": 4, "max_tokens": 8}
DRAWN = Sampling(0.9, 20, 0.95, seed=7)


@cache
def source() -> RandomTensors:
    return RandomTensors(MODEL)


def live(patience: float = 0.01, slice: int = 4, sampling: Mode = "greedy") -> LiveBackend:
    schedule = tiny_plan(MODEL, batch=3, live=True, sampling=sampling, **SETTINGS)  # type: ignore[arg-type]
    return LiveBackend(CpuEngine(schedule, source()), slice, patience=patience)


def test_a_reader_of_prompts_with_memory_of_its_own_is_freed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, order = live(), list[str]()
    backend.prompts = SimpleNamespace(free=lambda: order.append("prompts"), read=lambda *_: False)
    monkeypatch.setattr(backend.engine, "free", lambda: order.append("engine"), raising=False)
    backend.free()
    assert order == ["prompts", "engine"]


@cache
def single() -> ScheduleBackend:
    return ScheduleBackend(CpuEngine(tiny_plan(MODEL, **SETTINGS), source()))  # type: ignore[arg-type]


@cache
def alone(prompt: tuple[int, ...], eos: tuple[int, ...] = ()) -> list[int]:
    """Greedy tokens of a schedule of one sequence, to the end of the context."""
    text = list(prompt)
    while len(text) <= CONTEXT and text[-1] not in eos:
        text += single().extend(text, 1, GREEDY, eos)
    return text[len(prompt) :]


class Text:
    """A request: its prompt, where it stops, how it draws, how it asks."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.prompt = tuple(self.rng.randrange(MODEL.vocab) for _ in range(self.rng.randint(1, 9)))
        self.most = self.rng.randint(1, CONTEXT - len(self.prompt) + 1)
        self.eos = tuple(self.rng.sample(range(MODEL.vocab), 3))
        self.sampling = replace(DRAWN, seed=seed, temperature=0.7 + seed % 5 / 10) if seed % 4 == 3 else GREEDY

    def run(self, backend: LiveBackend) -> list[int]:
        found: list[int] = []
        time.sleep(self.rng.random() * 0.05)
        while len(found) < self.most and not (found and found[-1] in self.eos):
            wanted = min(self.rng.randint(1, 5), self.most - len(found))
            found += backend.extend([*self.prompt, *found], wanted, self.sampling, self.eos)
            if self.rng.random() < 0.2:
                time.sleep(0.02)
        return found


def drawn(text: Text) -> list[int]:
    found: list[int] = []
    while len(found) < text.most and not (found and found[-1] in text.eos):
        tokens = [*text.prompt, *found]
        found.append(choose(single().logits(tokens), text.sampling, len(tokens) - 1))
    return found


@pytest.mark.turns(16)
@pytest.mark.parametrize("seed", range(cases(2, 12)))
def test_texts_that_come_and_go_are_what_they_are_alone(seed: int) -> None:
    """More texts than sequences, at random times, with ends, limits and choices of their own."""
    backend = live()
    texts = [Text(100 * seed + n) for n in range(8)]
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda text: text.run(backend), texts))
    for text, tokens in zip(texts, found, strict=True):
        if text.sampling is GREEDY:
            assert tokens == alone(text.prompt, text.eos)[: text.most]
        else:
            assert tokens == drawn(text)


@pytest.mark.turns(12)
@pytest.mark.parametrize("seed", range(cases(1, 6)))
def test_texts_that_the_device_draws_are_what_they_are_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by parameters of its own, beside texts that take the largest logit."""
    backend = live(sampling="top-k-top-p")
    texts = [Text(100 * seed + n) for n in (0, 3, 7, 11, 12, 15)]
    expected = [drawn(text) if text.sampling is not GREEDY else alone(text.prompt, text.eos) for text in texts]
    monkeypatch.setattr(backend, "logits", lambda *_: pytest.fail("the host was asked to draw"))
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda text: text.run(backend), texts))
    for text, tokens, wanted in zip(texts, found, expected, strict=True):
        assert tokens == wanted[: text.most]


def test_texts_share_launches() -> None:
    backend, steps = live(patience=30.0), list[int]()
    step = backend.engine.step

    def counted(tokens: int) -> np.ndarray:
        steps.append(tokens)
        return step(tokens)

    backend.engine.step = counted  # type: ignore[method-assign]
    backend._expected = 3
    prompts = [(3, 17, 5), (9, 2, 30), (8, 11, 4)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda prompt: backend.extend(prompt, 4, GREEDY, ()), prompts))
    assert found == [alone(prompt)[:4] for prompt in prompts]
    assert sum(steps) == 6  # three given tokens and three chosen ones of all, at once


@pytest.mark.turns(4)
def test_logits_are_bitwise_those_of_the_text_alone() -> None:
    prompts = [(3, 17, 5, 8), (9, 2), (40, 41, 42, 43, 44)]
    expected = [live().logits(prompt) for prompt in prompts]
    backend = live(patience=1.0)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(backend.logits, prompts))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_text_goes_on_in_the_cache_that_it_left() -> None:
    backend = live(patience=0.0)
    first = backend.extend((3, 17, 5, 8), 3, GREEDY, ())
    backend.extend((9, 2, 30), 3, GREEDY, ())
    backend.extend((50, 51), 2, GREEDY, ())
    again = backend.extend((3, 17, 5, 8, *first), 3, GREEDY, ())
    assert backend.cached == 4 + len(first) - 1
    assert first + again == alone((3, 17, 5, 8))[: len(first) + len(again)]


@pytest.mark.turns(4)
def test_the_last_position_is_used_beside_texts_that_begin() -> None:
    backend = live(patience=0.0)
    long = tuple(range(1, CONTEXT + 1))
    assert backend.extend(long, 5, GREEDY, ()) == alone(long)
    for prompt in ((5,), (6, 7), (8,), (9, 10)):
        assert backend.extend(prompt, 4, GREEDY, ()) == alone(prompt)[:4]
    with pytest.raises(AmkError, match="AMK014"):
        backend.extend((*long, 1), 1, GREEDY, ())


@pytest.mark.turns(4)
def test_a_launch_that_fails_fails_every_text_in_it_and_no_later_one() -> None:
    backend = live(patience=30.0)
    step, broken = backend.engine.step, threading.Event()

    def failing(tokens: int) -> np.ndarray:
        if not broken.is_set():
            broken.set()
            backend._patience = 0.0  # the two that are left are fewer than there are seats
            raise RuntimeError("lost")
        return step(tokens)

    backend.engine.step = failing  # type: ignore[method-assign]
    backend._expected, prompts = 5, [(3, 4), (5, 6), (7, 8), (9, 10), (11, 12)]
    with ThreadPoolExecutor(5) as pool:
        tasks = [pool.submit(backend.extend, prompt, 2, GREEDY, ()) for prompt in prompts]
        errors = [task.exception() for task in tasks]
    assert sorted(str(error) for error in errors) == ["None", "None", "lost", "lost", "lost"]
    for prompt, task, error in zip(prompts, tasks, errors, strict=True):
        assert error is not None or task.result() == alone(prompt)[:2]
    assert backend.extend((3, 4), 2, GREEDY, ()) == alone((3, 4))[:2]


def test_a_schedule_with_one_position_is_refused() -> None:
    with pytest.raises(AmkError, match="AMK016"):
        LiveBackend(CpuEngine(tiny_plan(MODEL, batch=3, **SETTINGS), source()))  # type: ignore[arg-type]


@pytest.mark.turns(16)
def test_a_model_answers_several_prompts_at_once(tmp_path: Path) -> None:
    directory = tiny_chat.write(tmp_path / "tiny")
    prompts = ["one", [5, 6, 7], [{"role": "user", "content": "Hi"}], "two two"]
    with amk.load(directory, device="interpreter", batch=2, max_context=96) as several:
        assert several.sequences == 2
        together = several.generate_all(prompts, max_tokens=3)
        one = [several.generate(prompt, max_tokens=3) for prompt in prompts[:2]]
        scored = several.score("one", ["two", "three"])
    assert [each.tokens for each in together[:2]] == [each.tokens for each in one]
    with amk.load(directory, device="interpreter", max_context=96) as model:
        assert [each.tokens for each in together] == [model.generate(p, max_tokens=3).tokens for p in prompts]
        for found, wanted in zip(scored, model.score("one", ["two", "three"]), strict=True):
            assert found.logprob == pytest.approx(wanted.logprob, abs=1e-3)
