"""Tokens that the kernel draws for the sequences of a batch, each with parameters of its own: what the reference draws
from the kernel's logits, the same in every run, and for a text whatever is computed beside it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from amk.engine.backends.live_backend import LiveBackend
from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.planner.settings import FAST
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.targets.target import Target
from tests.gpu.test_sampling import allowed
from tests.tiny import PLAIN, RAGGED

pytestmark = pytest.mark.gpu

CASES = [
    *((model, batch, live) for model in (PLAIN, RAGGED) for batch in (2, 8) for live in (False, True)),
    (load_model("smollm2-135m"), 3, True),
    (load_model("llama3.2-1b"), 8, True),
]
STEPS = 16
WISHES = (
    Sampling(0.9, 50, 0.9, 8), GREEDY, Sampling(1.2, 200, 0.5, 9), Sampling(0.7, seed=1), Sampling(1.0, 1),
    Sampling(3.0, 0, 0.999, 2**64 - 1), Sampling(0.8, 40, seed=3), Sampling(1.1, 7, 0.95, 8),
)  # fmt: skip
PROMPTS = ([3, 1, 2], [5], [6, 7], [9, 9, 9, 9], [1], [2, 3], [8], [4, 4, 4])


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c[0].name}-{c[1]}-{'live' if c[2] else 'together'}")
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded, planned

    model, batch, live = request.param
    settings = replace(FAST, batch=batch, live=live, sampling="top-k-top-p")
    with loaded(planned(model, gpu, 256, settings)) as found:
        yield found


def run(subject: Any, slice_: int) -> list[list[int]]:
    """Tokens [sequence][step] of all sequences from position 0."""
    batch = subject.schedule.batch
    subject.engine.reset()
    subject.engine.request_batch(PROMPTS[:batch], sampling=WISHES[:batch])
    rows = [row for _ in range(0, STEPS, slice_) for row in subject.engine.step(slice_).tolist()]
    return [list(column) for column in zip(*rows, strict=True)]


def test_every_drawn_token_is_one_that_the_reference_draws(subject: Any) -> None:
    engine, batch = subject.engine, subject.schedule.batch
    exact = drawn = 0
    engine.reset()
    engine.request_batch(PROMPTS[:batch], sampling=WISHES[:batch])
    for pos in range(STEPS):
        tokens, logits = engine.step(1)[0].tolist(), engine.logits()
        for s in range(batch):
            if pos + 1 < len(PROMPTS[s]):
                assert tokens[s] == PROMPTS[s][pos + 1]
            elif WISHES[s] is GREEDY:
                assert tokens[s] == int(logits[s].argmax())
            else:
                rows = allowed(logits[s], WISHES[s], pos)
                assert tokens[s] in rows, f"sequence {s}, {WISHES[s]} at {pos}"
                exact, drawn = exact + (len(rows) == 1), drawn + 1
    assert exact > 0.9 * drawn, "the comparison hinges on rounding"


def test_equal_seeds_give_equal_texts_whatever_the_launches(subject: Any) -> None:
    first = run(subject, 1)
    assert first == run(subject, STEPS) == run(subject, 4) == run(subject, 1)


def test_a_drawn_text_does_not_depend_on_the_others(subject: Any) -> None:
    if not subject.schedule.live:
        pytest.skip("texts come and go where sequences are live")
    backend, batch = LiveBackend(subject.engine), subject.schedule.batch

    def text(number: int) -> list[int]:
        found: list[int] = []
        sampling = WISHES[number % len(WISHES)]
        while len(found) < 20:
            found += backend.extend([*PROMPTS[number % len(PROMPTS)], number, *found], 20 - len(found), sampling, ())
        return found

    alone = [text(number) for number in range(2 * batch)]
    with ThreadPoolExecutor(batch + 1) as pool:
        assert list(pool.map(text, range(2 * batch))) == alone
