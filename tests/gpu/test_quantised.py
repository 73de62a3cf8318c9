"""Every weight format on the GPU, against fp64 on the dequantised weights, at several positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from amk.lowering.launch import Device
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.schedule_ir.model import load_model
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.target import Target
from amk.schedule_ir.weight_format import FORMATS, FormatName
from tests.tiny import NORMED, PLAIN, RAGGED

pytestmark = pytest.mark.gpu

POSITIONS = (0, 127, 2048)
CONTEXT = 4096

Case = tuple[ModelSpec, FormatName, FormatName]
CASES: list[Case] = [
    *((PLAIN, form, form) for form in FORMATS if form != "bf16"),
    *((RAGGED, form, form) for form in FORMATS if form != "bf16"),
    (NORMED, "int4-g128", "bf16"),
    (load_model("smollm2-135m"), "int8", "int8"),
    (load_model("smollm2-135m"), "int4-g128-zp", "bf16"),
    (load_model("qwen2.5-0.5b"), "fp8", "int8-g128"),
    *((load_model("llama3.2-1b"), form, form) for form in ("int8", "fp8", "int4-g128")),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0].name}-{case[1]}-{case[2]}")
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded

    model, layers, lm_head = request.param
    with loaded(plan(model, gpu, wanted=formats(layers, lm_head), max_context=CONTEXT)) as found:
        yield found


def test_logits_are_as_close_to_fp64_as_torch_bf16(subject: Any) -> None:
    import torch

    from amk.bench.accuracy import relative_error, within_tolerance

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

    from amk.bench.accuracy import relative_error
    from amk.bench.torch_model import TorchDecoder, TorchWeights
    from tests.gpu.subjects import SEED

    original = TorchWeights.random(subject.schedule.model, SEED)
    subject.load_cache()
    reference = subject.torch_logits(7, 127, torch.float64)
    decoder = TorchDecoder(original, subject.k_cache, subject.v_cache, torch.float64)
    with subject.preserved(127):
        other = decoder.step(torch.tensor([7], device="cuda"), 127, decoder.rope(127))
    error = relative_error(subject.logits(7, 127), reference)
    assert relative_error(other, reference) > 1.5 * error


def test_one_launch_of_n_tokens_is_n_launches_of_one(subject: Any) -> None:
    from amk.bench.subject import no_prompt

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
