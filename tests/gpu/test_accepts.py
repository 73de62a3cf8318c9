"""Launches of several steps that accept guesses by themselves on the GPU: whichever are right, the text is the same,
every token is the one that the reference chooses from the kernel's logits, and plain decoding gives it, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.planner.settings import FAST
from amk.schedule_ir.ops.select import REJECTED
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import mode_of
from amk.targets.target import Target
from tests.engine import tiny_chat
from tests.engine.guesses import check_same_answers, guessed
from tests.gpu.test_sampling import allowed
from tests.tiny import PLAIN, RAGGED

pytestmark = pytest.mark.gpu

CASES = [
    *((model, rows, mode) for model in (PLAIN, RAGGED) for rows in (3, 8) for mode in ("greedy", "top-k-top-p")),
    (PLAIN, 16, "greedy"),
    (PLAIN, 40, "temperature"),
    (load_model("llama3.2-1b"), 8, "greedy"),
]
CONTEXT, STEPS = 256, 3
PROMPT = [3, 1, 2, 9, 4]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join((case[0].name, *map(str, case[1:]))))
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded, planned

    model, rows, mode = request.param
    settings = replace(FAST, sampling=mode, rows=rows, accepts=True)
    with loaded(planned(model, gpu, CONTEXT, settings)) as found:
        yield found


def wishes(subject: Any) -> list[Sampling]:
    return {
        "greedy": [GREEDY],
        "temperature": [Sampling(0.9, seed=5), GREEDY],
        "top-k-top-p": [Sampling(1.1, 40, 0.95, 5), Sampling(0.8, 7, seed=2**64 - 1)],
    }[mode_of(subject.schedule)]


def one_by_one(subject: Any, tokens: int, sampling: Sampling) -> list[int]:
    """The prompt and what is chosen behind it by launches of a step whose guesses are all token 0."""
    text, at = list(PROMPT), 0
    subject.engine.reset()
    while len(text) < tokens:
        (shown,) = launched(subject, [*text, *[0] * (CONTEXT - len(text))], at, len(text), sampling, 1)
        text += shown[len(text) - 1 - at :]
        at += len(shown)
    return text[:tokens]


def launched(
    subject: Any, text: list[int], start: int, prompt_length: int, sampling: Sampling, steps: int
) -> list[list[int]]:
    """What each step of one launch shows, scratch poisoned before."""
    subject.engine.poison()
    subject.engine.request(text, sampling=sampling, start=start, prompt_length=prompt_length)
    return [[token for token in step if token != REJECTED] for step in subject.engine.step(steps).tolist()]


def ways(rows: int) -> list[tuple[int, ...]]:
    """How many rows count in each step of a launch."""
    return list(product(range(1, rows + 1) if rows < 4 else (1, 2, rows - 1, rows), repeat=STEPS))


def test_every_way_of_accepting_gives_the_same_text(subject: Any) -> None:
    rows, vocab, start = subject.schedule.rows, subject.schedule.model.vocab, len(PROMPT) - 1
    for sampling in wishes(subject):
        right = one_by_one(subject, start + STEPS * rows + 1, sampling)
        for counts in ways(rows):
            guesses, at = guessed([*right, 0], counts, rows, vocab, start)
            shown = launched(subject, guesses, start, len(PROMPT), sampling, STEPS)
            assert tuple(map(len, shown)) == counts, sampling
            assert [*chain(*shown)] == right[len(PROMPT) : at + 1]
            state = subject.engine.state()
            assert (state["pos"], state["token"], state["done"]) == (at, right[at], 0)


def test_every_token_is_the_one_that_the_reference_chooses(subject: Any) -> None:
    """From the kernel's logits, each row with the noise of its own position."""
    chosen = exact = 0
    for sampling in wishes(subject):
        at, right = 0, one_by_one(subject, 50, sampling)
        while at + subject.schedule.rows < len(right):
            shown = launched(subject, right, at, len(PROMPT), sampling, 1)[0]
            logits = subject.engine.logits()
            for pos, token in enumerate(shown, at):
                row = logits[pos - at]
                if pos + 1 < len(PROMPT):
                    assert token == PROMPT[pos + 1]
                    continue
                fits = {int(row.argmax())} if sampling is GREEDY else allowed(row, sampling, pos)
                assert token in fits, f"{sampling} at {pos}"
                chosen, exact = chosen + 1, exact + (len(fits) == 1)
            assert len(shown) == subject.schedule.rows, "every guess is right"
            at += len(shown)
    assert exact > 0.9 * chosen, "the comparison hinges on rounding"


def test_a_launch_of_several_steps_is_several_launches_of_one(subject: Any) -> None:
    """Bit for bit, with right and wrong guesses, from the prompt on and behind the end of the text."""
    steps = min(6, CONTEXT // subject.schedule.rows)
    for sampling in wishes(subject):
        right = one_by_one(subject, 60, sampling)
        guesses = [token if at % 7 else (token + 1) % subject.schedule.model.vocab for at, token in enumerate(right)]
        text, runs = right[: len(PROMPT)] + guesses[len(PROMPT) :], []
        for launches in ([steps], [1] * steps):
            subject.engine.reset()
            subject.engine.request(text, (right[20],), sampling, 0, len(PROMPT))
            shown = np.concatenate([subject.engine.step(n) for n in launches])
            runs.append((shown, subject.engine.logits().view(np.uint32), subject.engine.state() | {"epoch": 0}))
        np.testing.assert_array_equal(runs[0][0], runs[1][0])
        np.testing.assert_array_equal(runs[0][1], runs[1][1])
        assert runs[0][2] == runs[1][2]


@pytest.mark.parametrize("steps", [2, 4])
def test_draft_steps_change_no_answer(torch_gpu: Device, gpu: Target, tmp_path: Path, steps: int) -> None:
    options: dict[str, Any] = {"gpu": gpu.name, "max_context": 64, "prefill": "kernel"}
    directory, prompt = tiny_chat.write(tmp_path / "tiny"), "ABABAB WAS ABABAB"
    with (
        amk.load(directory, **options) as plain,
        amk.load(directory, **options, speculate="lookup", draft_tokens=3, draft_steps=steps) as guessing,
    ):
        check_same_answers(plain, guessing, prompt)
