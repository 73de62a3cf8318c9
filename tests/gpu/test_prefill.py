"""Prompts by torch into the kernel's cache, beside reading them token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.planner.formats import formats
from amk.targets.target import Target
from tests.tiny import BIASED, NORMED

pytestmark = pytest.mark.gpu

TOKENS = 96
CONTEXT = 512
FORMATS = ("bf16", "int8", "int8-g64", "int4-g128", "int4-g128-zp", "fp8")
MODELS = [pytest.param(model, id=model.name) for model in (BIASED, NORMED, load_model("llama3.2-1b"))]


@pytest.fixture(scope="module", params=MODELS)
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded, planned

    with loaded(planned(request.param, gpu, CONTEXT)) as found:
        yield found


def text(subject: Any) -> list[int]:
    return [(17 * i + 5) % subject.schedule.model.vocab for i in range(TOKENS)]


def caches(subject: Any, end: int) -> Any:
    import torch

    from amk.prefill.views import view

    return torch.stack([view(subject.engine, name)[:, :, :end].double() for name in ("k_cache", "v_cache")])


def test_cache_and_logits_are_as_close_to_fp64_as_token_by_token(subject: Any) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance
    from amk.prefill.reader import TorchPrompts
    from tests.gpu.subjects import forced_logits, fresh_decoder

    tokens, end, engine = text(subject), TOKENS - 1, subject.engine
    exact = fresh_decoder(subject, torch.float64, TOKENS)
    expected = forced_logits(exact, tokens)[-1]
    keys = torch.stack([exact.k_cache, exact.v_cache])[:, :, :, :end].double()
    engine.request(tokens)
    engine.step(TOKENS)
    slow, slow_cache = torch.from_numpy(engine.logits()).cuda(), relative_error(caches(subject, end), keys)
    engine.poison()
    prompts = TorchPrompts(engine, least=1, forced=True)
    assert prompts.read(tokens[:40], 0) and prompts.read(tokens[40:end], 40)
    engine.request(tokens, start=end)
    engine.step(1)
    fast, fast_cache = torch.from_numpy(engine.logits()).cuda(), relative_error(caches(subject, end), keys)
    engine.poison()
    whole = [prompts.read_all(tokens, 0), prompts.read(tokens[:40], 0) and prompts.read_all(tokens[40:], 40)]
    whole_cache = relative_error(caches(subject, end), keys)
    torch_error = relative_error(forced_logits(fresh_decoder(subject, torch.bfloat16, TOKENS), tokens)[-1], expected)
    behind = [torch.from_numpy(each.logits()).cuda() for each in whole if each]
    errors = [relative_error(each, expected) for each in (slow, fast, *behind)]
    print(f"{subject.schedule.model.name}: logits {errors}, torch {torch_error}, cache {slow_cache} {fast_cache}")
    assert max(fast_cache, whole_cache) < 2 * slow_cache
    assert len(behind) == 2 and all(within_tolerance(each, max(torch_error, errors[0])) for each in errors[1:])
    assert [each.largest for each in whole if each] == [int(each.argmax()) for each in behind]


def test_it_is_reproducible_and_leaves_the_rest_of_the_cache_alone(subject: Any) -> None:
    from amk.prefill.graphs import padded
    from amk.prefill.reader import TorchPrompts

    tokens, end = text(subject), TOKENS - 1
    prompts, found = TorchPrompts(subject.engine, least=1, forced=True), []
    for byte in (0x11, 0x22):
        for name in ("k_cache", "v_cache"):
            subject.engine.buffers[name].fill(byte, subject.engine.stream.handle)
        assert prompts.read(tokens[:end], 0)  # the second time by the graph that the first one made
        subject.engine.stream.synchronise()
        found.append(caches(subject, end).cpu())
        for name in ("k_cache", "v_cache"):
            whole = subject.engine.read(name, np.uint8, subject.engine.buffers[name].nbytes)
            model = subject.schedule.model
            rows = whole[: 2 * model.layers * model.kv_heads * CONTEXT * model.head_dim]
            assert (rows.reshape(-1, CONTEXT, 2 * model.head_dim)[:, padded(end) :] == byte).all()
    assert found[0].equal(found[1])


def test_tokens_come_from_launches_ahead_as_from_one_launch(subject: Any) -> None:
    """Also where a text was abandoned before, and with a prompt that a graph reads for the second time."""
    from amk.engine.backends.schedule_backend import ScheduleBackend
    from amk.prefill.reader import TorchPrompts
    from amk.schedule_ir.sampling import GREEDY

    engine, tokens, count = subject.engine, text(subject), 40
    prompts = TorchPrompts(engine, least=1, forced=True)
    backend = ScheduleBackend(engine, prompts=prompts)
    found = []
    for most in (3, count, count):
        backend.forget()
        answer: list[int] = []
        while len(answer) < most:
            answer += backend.extend([*tokens, *answer], count - len(answer), GREEDY, ())
        found.append(answer[:most])
    behind = prompts.read_all(tokens, 0)
    assert behind is not None
    first = behind.largest
    engine.request([*tokens, first], start=TOKENS)
    expected = [first, *engine.step(count - 1).tolist()]
    assert found == [expected[:3], expected, expected]
    np.testing.assert_array_equal(backend.logits([*tokens, *expected[:-1]]), engine.logits())


@pytest.mark.parametrize("form", FORMATS)
def test_matrices_are_what_the_stream_stands_for(form: Any, torch_gpu: Device, gpu: Target) -> None:
    import torch

    from amk.planner.decode import plan
    from amk.planner.settings import FAST
    from amk.prefill.device_matrices import DeviceMatrices
    from tests.gpu.subjects import loaded

    model = load_model("qwen2.5-0.5b")
    with loaded(plan(model, gpu, settings=FAST, formats=formats(form), max_context=CONTEXT)) as subject:
        for stay in (0, 3, None):
            matrices = DeviceMatrices(subject.engine, stay)
            for layer in (*range(model.layers), *range(model.layers)):
                found = matrices(layer)
                for name, rows in found.items():
                    assert torch.equal(rows, subject.weights.matrices[name][layer]), f"{name} of layer {layer}, {stay}"
            assert torch.equal(matrices.head, subject.weights.matrices["lm_head"][0])
