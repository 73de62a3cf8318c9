"""Sequences at positions of their own on the GPU: each is bitwise what it is beside others at its own position, which
torch checks; texts that come and go get the tokens that they get alone."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amk.engine.backends.live_backend import LiveBackend
from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.schedule_ir.sampling import GREEDY
from amk.targets.target import Target
from amk.weights.weight_format import FormatName
from tests.tiny import PAIRED, PLAIN, RAGGED, VARIANTS

pytestmark = pytest.mark.gpu

CASES: list[tuple[ModelSpec, int, FormatName, FormatName]] = [
    *((model, batch, "bf16", "bf16") for model in VARIANTS for batch in (2, 5, 8)),
    (load_model("smollm2-135m"), 3, "bf16", "bf16"),
    (load_model("llama3.2-1b"), 8, "bf16", "bf16"),
    (load_model("llama3-8b"), 8, "bf16", "bf16"),
    (PLAIN, 2, "int8", "int8-g64"),
    (RAGGED, 5, "int4-g64-zp", "int4-g128"),
    (PAIRED, 8, "fp8", "bf16"),
    (PLAIN, 12, "int4-g128", "fp8"),
    (load_model("llama3.2-1b"), 8, "int8", "int8"),
    (load_model("llama3-8b"), 8, "int4-g128", "int8"),
    (load_model("llama3-8b"), 16, "fp8", "fp8"),
]
"""Model, sequences, formats of the layers and of lm_head."""
CONTEXT = 2048
POSITIONS = (0, 2047, 63, 128, 1, 700, 64, 1500)
TOKEN = 1003


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join((case[0].name, *map(str, case[1:]))))
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded

    model, batch, layers, lm_head = request.param
    settings, context = replace(FAST, batch=batch, live=True), min(CONTEXT, model.max_context)
    wanted = formats(layers, lm_head)
    with loaded(plan(model, gpu, settings=settings, formats=wanted, max_context=context)) as found:
        yield found


def places(subject: Any) -> list[int]:
    """As many positions as there are sequences."""
    last = subject.schedule.kv.context - 1
    return [min(POSITIONS[s % len(POSITIONS)], last) for s in range(subject.schedule.batch)]


def logits(subject: Any, positions: list[int]) -> np.ndarray:
    """One step with every sequence at its position, as bits [batch, vocab]; scratch and cache as they were before."""
    subject.load_cache()
    subject.start(TOKEN, 0)
    subject.engine.poison()
    subject.place(TOKEN, positions)
    subject.engine.step(1)
    schedule = subject.schedule
    state = subject.engine.state()
    assert [state["pos" if s == 0 else f"pos.{s}"] for s in range(schedule.batch)] == [pos + 1 for pos in positions]
    found: np.ndarray = subject.engine.read("logits", np.uint32, schedule.batch * schedule.model.vocab)
    return found.reshape(schedule.batch, -1)


def test_side_by_side_logits_are_as_close_to_fp64_as_torch_bf16(subject: Any) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance

    for pos in sorted(set(places(subject))):
        subject.load_cache()
        found = subject.logits(TOKEN, pos)
        assert torch.isfinite(found).all(), f"position {pos}"
        reference = subject.torch_logits(TOKEN, pos, torch.float64)
        error = relative_error(found, reference)
        torch_error = relative_error(subject.torch_logits(TOKEN, pos, torch.bfloat16), reference)
        assert within_tolerance(error, torch_error), f"position {pos}: error {error:.3e}, torch's {torch_error:.3e}"


def test_positions_of_the_others_change_no_bit(subject: Any) -> None:
    own = places(subject)
    together = {pos: logits(subject, [pos] * len(own)) for pos in set(own)}
    for turn in range(len(own)):
        positions = own[turn:] + own[:turn]
        found = logits(subject, positions)
        for sequence, pos in enumerate(positions):
            np.testing.assert_array_equal(found[sequence], together[pos][sequence], err_msg=f"{sequence} at {pos}")


def test_what_is_left_in_a_cache_changes_no_bit_of_a_text_that_joins(subject: Any) -> None:
    import torch

    from amk.bench.tools.subject import copy_to

    steps, found = 3, []
    own = [0, *(min(pos, subject.schedule.kv.context - steps) for pos in places(subject)[1:])]
    for junk in (0.0, float("nan")):
        logits(subject, own)
        caches = (subject.k_cache.clone(), subject.v_cache.clone())
        for name, cache in zip(("k_cache", "v_cache"), caches, strict=True):
            cache[:, : subject.schedule.model.kv_heads] = junk
            copy_to(subject.engine, name, cache)
        subject.engine.poison()
        subject.place(TOKEN, own)
        subject.engine.step(steps)
        found.append(subject.engine.read("logits", np.uint32, subject.schedule.batch * subject.schedule.model.vocab))
        del caches
    torch.cuda.synchronize()
    np.testing.assert_array_equal(found[0], found[1])


def test_one_text_in_every_sequence_has_the_same_bits(subject: Any) -> None:
    batch, vocab, steps = subject.schedule.batch, subject.schedule.model.vocab, 40
    rng = random.Random(5)
    for _ in range(4):
        text = [rng.randrange(vocab) for _ in range(rng.randint(1, 20))]
        subject.engine.request_batch([text] * batch, start=[0] * batch)
        tokens = np.concatenate([subject.engine.step(8).reshape(8, batch) for _ in range(steps // 8)])
        np.testing.assert_array_equal(tokens, np.repeat(tokens[:, :1], batch, axis=1))
        rows = subject.engine.read("logits", np.uint32, batch * vocab).reshape(batch, vocab)
        np.testing.assert_array_equal(rows, np.broadcast_to(rows[:1], rows.shape))


def test_the_same_texts_again_have_the_same_bits(subject: Any) -> None:
    batch, vocab = subject.schedule.batch, subject.schedule.model.vocab
    rng = random.Random(7)
    texts = [[rng.randrange(vocab) for _ in range(rng.randint(1, 20))] for _ in range(batch)]
    found = []
    for _ in range(12):
        subject.engine.request_batch(texts, start=[0] * batch)
        tokens = [subject.engine.step(8).tolist() for _ in range(5)]
        found.append((tokens, subject.engine.read("logits", np.uint32, batch * vocab)))
    for again, (tokens, bits) in enumerate(found):
        assert tokens == found[0][0], f"run {again}"
        np.testing.assert_array_equal(bits, found[0][1], err_msg=f"run {again}")


def test_texts_that_come_and_go_are_what_they_are_alone(subject: Any) -> None:
    backend, vocab = LiveBackend(subject.engine), subject.schedule.model.vocab
    rng = random.Random(3)
    texts = [[rng.randrange(vocab) for _ in range(rng.randint(1, 20))] for _ in range(3 * subject.schedule.batch)]
    most = [rng.randint(1, min(40, subject.schedule.kv.context - len(text))) for text in texts]

    def run(number: int) -> list[int]:
        time.sleep(0.01 * (number % 5))
        found: list[int] = []
        while len(found) < most[number]:
            found += backend.extend([*texts[number], *found], min(8, most[number] - len(found)), GREEDY, ())
        return found

    alone = [run(number) for number in range(len(texts))]
    with ThreadPoolExecutor(subject.schedule.batch + 1) as pool:
        assert list(pool.map(run, range(len(texts)))) == alone
