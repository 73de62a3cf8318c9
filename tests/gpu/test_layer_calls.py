"""Slices of layers called by torch on a GPU: in CUDA graphs, on its streams and in its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError
from amk.targets.target import Target
from tests.engine.tiny import RandomTensors
from tests.tiny import BIASED, NORMED, PLAIN

pytestmark = pytest.mark.gpu

SEED, TOKENS, CONTEXT = 31, 32, 128
MODELS = [pytest.param(model, id=model.name) for model in (PLAIN, BIASED, NORMED, load_model("smollm2-135m"))]


@pytest.fixture(scope="module", params=MODELS)
def sliced(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    """The model in two slices of unequal length, its weights, and the tokens that are read."""
    from amk.bench.tools.torch_model import TorchWeights
    from tests.gpu.sliced import Sliced

    model: ModelSpec = request.param
    weights = TorchWeights.random(model, SEED)
    slices = Sliced(model, weights, gpu.name, (0, max(1, model.layers // 3), model.layers), CONTEXT)
    yield slices, weights, [(17 * i + 5) % model.vocab for i in range(TOKENS)]
    slices.free()


def embedded(weights: Any, tokens: list[int]) -> Any:
    import torch

    return weights.embedding[torch.tensor(tokens, device="cuda")].float()


def test_replays_are_as_close_to_fp64_as_torch_bf16(sliced: Any) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance
    from amk.bench.tools.torch_model import TorchDecoder
    from tests.gpu.sliced import logits_of
    from tests.gpu.subjects import forced_logits

    slices, weights, tokens = sliced
    slices.capture()
    found = logits_of(slices.states(embedded(weights, tokens)), weights)
    shape = weights.model.layers, weights.model.kv_heads, CONTEXT, weights.model.head_dim
    by_torch = [
        forced_logits(
            TorchDecoder(weights, *(torch.zeros(shape, dtype=kept, device="cuda") for _ in "kv"), kind), tokens
        )
        for kind, kept in ((torch.float64, torch.bfloat16), (torch.bfloat16, torch.bfloat16))
    ]
    error, torch_error = relative_error(found, by_torch[0]), relative_error(by_torch[1], by_torch[0])
    print(f"\n{weights.model.name}: error {error:.2e}, torch's {torch_error:.2e}")
    assert within_tolerance(error, torch_error)


def test_the_head_gives_the_logits_of_the_state_it_is_given(sliced: Any) -> None:
    """Captured behind the layers, as close to fp64 of the same state as torch's product in bf16; twice alike."""
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance
    from tests.gpu.sliced import logits_of

    slices, weights, tokens = sliced
    slices.capture()
    states, logits = slices.run(embedded(weights, tokens))
    exact, model = logits_of(states, weights), weights.model
    normed = torch.nn.functional.rms_norm(states, (model.hidden,), weights.norm[-1].float(), model.rms_eps)
    by_torch = normed.bfloat16() @ weights.matrices["lm_head"][0].T
    assert within_tolerance(relative_error(logits, exact), relative_error(by_torch, exact))
    assert torch.equal(slices.run(embedded(weights, tokens))[1], logits)


def test_the_last_layers_and_the_head_are_one_call(sliced: Any, gpu: Target) -> None:
    import torch

    from amk.api.layers import layers
    from amk.bench.tools.accuracy import relative_error
    from tests.gpu.sliced import Tensors

    slices, weights, tokens = sliced
    model, slices.graph = weights.model, None
    apart = slices.run(embedded(weights, tokens))[1]
    both: Any = layers(model, 0, model.layers, head=True, gpu=gpu.name, weights=Tensors(weights), max_context=CONTEXT)
    with both:
        shape = model.layers, model.kv_heads, CONTEXT, model.head_dim
        keys, values = (torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in "kv")
        position, logits = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.zeros(model.vocab, device="cuda")
        for at, row in enumerate(embedded(weights, tokens)):
            position.fill_(at)
            both(row.clone(), logits, keys, values, position, stream=torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        both.check()
    assert relative_error(logits, apart[-1]) < 2.0**-6, "hidden states within a call are in bf16"


def test_two_runs_are_bitwise_equal_replayed_or_not(sliced: Any) -> None:
    import torch

    slices, weights, tokens = sliced
    inputs, slices.graph = embedded(weights, tokens), None
    direct = slices.states(inputs)
    slices.capture()
    replayed, again = slices.states(inputs), slices.states(inputs)
    assert torch.isfinite(direct).all() and direct.abs().sum() > 0
    assert torch.equal(direct, replayed) and torch.equal(replayed, again)


def test_calls_follow_the_callers_stream_without_waiting_for_it(sliced: Any) -> None:
    """Enqueued behind a second of other work, a call returns before that work ends, and reads what it leaves."""
    import torch

    slices, weights, tokens = sliced
    slices.graph = None
    inputs = embedded(weights, tokens[:1])
    expected = slices.states(inputs)[0]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        slices.position.zero_()
        slices.hidden.fill_(float("nan"))
        torch.cuda._sleep(1_000_000_000)
        slices.hidden.copy_(inputs[0])
        slices.step()
        assert not side.query()
    side.synchronize()
    assert torch.equal(slices.out, expected)


def test_memory_of_another_device_or_shape_is_refused(sliced: Any) -> None:
    import torch

    slices, _, _ = sliced
    call, (keys, values) = slices.calls[0], slices.parts[0]
    for hidden in (torch.zeros(slices.hidden.shape), slices.hidden[:-1], slices.hidden.double(), slices.out):
        with pytest.raises(AmkError) as refused:
            call(hidden, slices.out, keys, values, slices.position)
        assert refused.value.diagnostics[0].code == "AMK005"


def test_the_example_decodes_as_the_reference_does(torch_gpu: Device) -> None:
    from tests.engine.tiny import reference_decoder
    from tests.examples.small_engine import SmallEngine
    from tests.reference.llama_numpy import greedy

    source, prompt = RandomTensors(PLAIN), [3, 17, 40]
    engine = SmallEngine(source, PLAIN, 64, cuts=(1,))
    answer = engine.generate(prompt, 12)
    assert answer == engine.generate(prompt, 12)
    wanted = list(greedy(reference_decoder(PLAIN, source.arrays), prompt, (), 12))
    clear = next(n for n, (_, gap) in enumerate(wanted) if gap < 0.1)
    assert clear == 3 and answer[:clear] == [token for token, _ in wanted[:clear]]
    for call in engine.calls:
        call.free()
