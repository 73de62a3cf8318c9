"""Every weight format on the GPU, against fp64 on the dequantised weights, at several positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.schedule_ir.schedule import CacheDtype
from amk.targets.target import Target
from amk.weights.weight_format import FORMATS, FormatName, weight_format
from tests.tiny import NORMED, PAIRED, PLAIN, RAGGED

pytestmark = pytest.mark.gpu

POSITIONS = (0, 127, 2048)
CONTEXT = 4096

Case = tuple[ModelSpec, FormatName, FormatName] | tuple[ModelSpec, FormatName, FormatName, CacheDtype]
"""Model, formats of the layers and of lm_head, and of the cache where it is not bf16."""
CASES: list[Case] = [
    *((PLAIN, form, form) for form in FORMATS if form != "bf16"),
    *((RAGGED, form, form) for form in FORMATS if form != "bf16"),
    *((PAIRED, form, form) for form in FORMATS if weight_format(form).bits == 4),
    (NORMED, "int4-g128", "bf16"),
    (load_model("smollm2-135m"), "int8", "int8"),
    (load_model("smollm2-135m"), "int4-g128-zp", "bf16"),
    (load_model("qwen2.5-0.5b"), "fp8", "int8-g128"),
    (PLAIN, "bf16", "bf16", "fp8"),
    (RAGGED, "int8", "int8", "fp8"),
    (load_model("llama3.2-1b"), "fp8", "fp8", "fp8"),
    *((load_model("llama3.2-1b"), form, form) for form in ("int8", "fp8", "int4-g128")),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join((case[0].name, *case[1:])))
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded

    model, layers, lm_head, *cache = request.param
    settings = replace(FAST, kv_dtype=cache[0] if cache else "bf16")
    with loaded(plan(model, gpu, settings=settings, formats=formats(layers, lm_head), max_context=CONTEXT)) as found:
        yield found


def test_logits_are_as_close_to_fp64_as_torch_bf16(subject: Any) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance

    for pos in POSITIONS:
        subject.load_cache()
        token = (1000 + pos) % subject.schedule.model.vocab
        found, again = subject.logits(token, pos), subject.logits(token, pos)
        assert torch.isfinite(found).all() and torch.equal(found, again), f"position {pos}"
        reference = subject.torch_logits(token, pos, torch.float64)
        error = relative_error(found, reference)
        torch_error = relative_error(subject.torch_logits(token, pos, torch.bfloat16), reference)
        assert within_tolerance(error, torch_error), f"position {pos}: error {error:.3e}, torch's {torch_error:.3e}"


def test_the_reference_is_not_the_unquantised_model(subject: Any) -> None:
    """The check above compares with what the codes stand for; the original weights give other logits."""
    import torch

    from amk.bench.tools.accuracy import relative_error
    from amk.bench.tools.torch_model import TorchDecoder, TorchWeights
    from tests.gpu.subjects import SEED

    (stream,) = subject.schedule.streams
    if not stream.chunks:
        pytest.skip("the weights of this plan are not quantised")
    original = TorchWeights.random(subject.schedule.model, SEED)
    subject.load_cache()
    reference = subject.torch_logits(7, 127, torch.float64)
    decoder = TorchDecoder(original, subject.k_cache, subject.v_cache, torch.float64)
    with subject.preserved(127):
        other = decoder.step(torch.tensor([7], device="cuda"), 127, decoder.rope(127))
    error = relative_error(subject.logits(7, 127), reference)
    assert relative_error(other, reference) > 1.5 * error


def test_one_launch_of_n_tokens_is_n_launches_of_one(subject: Any) -> None:
    from amk.bench.tools.subject import no_prompt

    engine, count, pos = subject.engine, 5, 5

    def start() -> None:
        subject.load_cache()
        no_prompt(engine)
        engine.set_state(token=11, pos=pos, done=0)

    start()
    together = engine.step(count).tolist()
    last = engine.read("logits", np.float32, subject.schedule.model.vocab)
    start()
    apart = [int(engine.step(1)[0]) for _ in range(count)]
    assert apart == together
    again = engine.read("logits", np.float32, subject.schedule.model.vocab)
    np.testing.assert_array_equal(again.view(np.uint32), last.view(np.uint32))


@pytest.mark.parametrize(("layers", "lm_head"), [("int8", "int8"), ("fp8", "fp8"), ("int4-g64-zp", "int8-g64")])
def test_a_real_checkpoint_packed_on_the_host(
    smollm2_path: Path, torch_gpu: Device, gpu: Target, layers: FormatName, lm_head: FormatName
) -> None:
    """Through the door of `generate`: logits of the stored numbers in float32, up to the rounding of activations."""
    from amk.engine.checkpoints.open_checkpoint import open_checkpoint
    from amk.engine.load import load
    from amk.quantize.forward import StoredTensors, text_logits
    from amk.quantize.search import searched

    checkpoint, forms = open_checkpoint(smollm2_path), formats(layers, lm_head)
    prompt = [1, 504, 3575, 282, 4649, 314, 260, 1028, 523, 33, 100, 7]
    session = load(plan(checkpoint.spec, gpu, formats=forms, max_context=256), checkpoint, "cuda")
    try:
        list(session.generate(prompt, 1))
        found = session.engine.read("logits", np.float32, checkpoint.spec.vocab)  # type: ignore[attr-defined]
    finally:
        session.engine.free()
    expected = text_logits(checkpoint.spec, StoredTensors(checkpoint.spec, checkpoint, forms, searched), prompt)[-1]
    plain = text_logits(checkpoint.spec, checkpoint, prompt)[-1]
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    quantising = np.linalg.norm(plain - expected) / np.linalg.norm(expected)
    assert error < 2e-2 and (layers == "int8" or error < quantising / 2), (error, quantising)
