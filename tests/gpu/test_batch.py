"""Sequences decoded together on the GPU, against torch and against the same sequences alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.settings import FAST
from amk.targets.target import Target
from tests.tiny import VARIANTS

pytestmark = pytest.mark.gpu

CASES = [
    *((model, batch) for model in VARIANTS for batch in (2, 3, 4, 5, 8)),
    *((load_model("smollm2-135m"), batch) for batch in (3, 8, 16)),
    *((load_model("llama3.2-1b"), batch) for batch in (4, 8, 16)),
    *((load_model("llama3-8b"), batch) for batch in (2, 3, 4, 5, 7, 8, 16, 32, 64)),
]
CONTEXT = 2048
POSITIONS = (0, 1, 63, 128, 2047)
PROMPTS = [[7, 30, 2, 9, 4], [11], [3, 8], [5, 6, 7, 1, 2, 9, 40, 12], [2], [90, 3, 1], [14, 15], [8, 8, 8, 8]]
PROMPTS += [[n, 2 * n] for n in range(20, 76)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0].name}-{case[1]}")
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded, planned

    model: ModelSpec
    model, batch = request.param
    with loaded(planned(model, gpu, CONTEXT, replace(FAST, batch=batch))) as found:
        yield found


def positions(subject: Any) -> list[int]:
    return [pos for pos in POSITIONS if pos < subject.schedule.kv.context]


def test_logits_of_every_sequence_are_as_close_to_fp64_as_torch_bf16(subject: Any) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance

    for pos in positions(subject):
        subject.load_cache()
        token = (1000 + pos) % subject.schedule.model.vocab
        found = subject.logits(token, pos)
        assert torch.isfinite(found).all(), f"position {pos}"
        reference = subject.torch_logits(token, pos, torch.float64)
        error = relative_error(found, reference)
        torch_error = relative_error(subject.torch_logits(token, pos, torch.bfloat16), reference)
        assert within_tolerance(error, torch_error), f"position {pos}: error {error:.3e}, torch's {torch_error:.3e}"


def test_two_runs_are_bitwise_equal(subject: Any) -> None:
    for pos in positions(subject):
        found = []
        for _ in range(2):
            subject.load_cache()
            found.append(subject.logits(3, pos).cpu().numpy().view(np.uint32))
        np.testing.assert_array_equal(found[0], found[1], err_msg=f"position {pos}")


def test_one_launch_of_n_tokens_is_n_launches_of_one(subject: Any) -> None:
    count, pos, engine = 9, 5, subject.engine
    subject.load_cache()
    subject.start(11, pos)
    together, last = engine.step(count), engine.state()
    subject.load_cache()
    subject.start(11, pos)
    apart = np.concatenate([engine.step(1) for _ in range(count)])
    np.testing.assert_array_equal(apart, together)
    assert engine.state() | {"epoch": 0} == last | {"epoch": 0}


def test_prompts_of_different_lengths_are_read_and_ends_are_repeated(subject: Any) -> None:
    engine, batch = subject.engine, subject.schedule.batch
    prompts = PROMPTS[:batch]
    engine.request_batch(prompts)
    free = engine.step(12)
    for sequence, prompt in enumerate(prompts):
        output = free[: len(prompt) - 1, sequence].tolist()
        assert output == prompt[1:], "given tokens come back until the last of them has been read"
    stop = int(free[9, 0])
    engine.request_batch(prompts, eos=(stop,))
    stopped = engine.step(12)
    for sequence, prompt in enumerate(prompts):
        chosen = free[len(prompt) - 1 :, sequence].tolist()
        end = chosen.index(stop) + 1 if stop in chosen else len(chosen)
        found = stopped[len(prompt) - 1 :, sequence].tolist()
        assert found == chosen[:end] + [stop] * (len(chosen) - end)


def test_a_sequence_does_not_depend_on_the_others(subject: Any) -> None:
    """Another token in the last place changes no bit of the other sequences' logits."""
    engine, schedule = subject.engine, subject.schedule
    rows = []
    for token in (5, 9):
        subject.load_cache()
        subject.start(3, 128 if schedule.kv.context > 128 else 5)
        engine.set_state(**{f"token.{schedule.batch - 1}": token})
        engine.step(1)
        logits = engine.read("logits", np.uint32, schedule.batch * schedule.model.vocab)
        rows.append(logits.reshape(schedule.batch, -1))
    np.testing.assert_array_equal(rows[0][:-1], rows[1][:-1])
    assert (rows[0][-1] != rows[1][-1]).any()
