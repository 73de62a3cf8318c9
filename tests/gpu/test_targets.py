"""Plans for other GPUs: compiled to PTX of their architecture, run here with their grid and their shared memory."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from amk.lowering.cubin import arch_number
from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName
from tests.tiny import VARIANTS

pytestmark = pytest.mark.gpu

SMALLER = ("l4", "a10g", "a100", "l20", "l40s", "rtx4090")
CASES = [
    *((model, gpu) for model in VARIANTS for gpu in SMALLER),
    *((load_model("llama3.2-1b"), gpu) for gpu in SMALLER),
    *((load_model("llama3-8b"), gpu) for gpu in ("l4", "a10g", "a100")),
]
POSITIONS = (0, 1, 127, 500)
CONTEXT = 512


@functools.lru_cache(maxsize=1)
def weights_of(model: ModelSpec) -> Any:
    """The cases of one model follow each other, so one set of weights is kept."""
    from amk.bench.tools.torch_model import TorchWeights

    return TorchWeights.random(model, 5)


def one_layer(name: str) -> ModelSpec:
    """A real shape of one layer and a small vocabulary: real tiles, rings and splits in a second of work."""
    smaller = {"name": f"{name}-layer", "layers": 1, "vocab": 8192, "bos": None, "eos": ()}
    return load_model(name).model_copy(update=smaller)


FORMATS_JIT = ("bf16", "int8", "int4-g128")
OLDER = ("a100", "a10g", "l4")
"""One target of each of sm_80, sm_86 and sm_89."""

FAR_CASES = [
    *((one_layer("llama3.2-1b"), gpu, form) for gpu in OLDER for form in FORMATS_JIT),
    *((one_layer("llama3-8b"), gpu, form) for gpu, form in zip(OLDER, FORMATS_JIT, strict=True)),
    (one_layer("qwen2.5-1.5b"), "l20", "bf16"),
]
FAR_POSITIONS = (0, 128, 2048, 8191)
FAR_CONTEXT = 8192


def retargeted(model: ModelSpec, gpu: str, device: Device, context: int, **more: Any) -> Schedule:
    """The plan for `gpu`; skipped where this device cannot run it. A GPU with more SMs than this one (L40S on an H200)
    is planned with as many workers as are resident here."""
    target = load_target(gpu)
    if target.smem_per_block > device.shared_bytes_per_block:
        pytest.skip(f"{device.name} has less shared memory than {gpu}")
    if arch_number(target.arch) > arch_number(device.arch):
        pytest.skip(f"{device.name} cannot run code for {target.arch}")
    context = min(context, model.max_context)
    schedule = plan(model, target, max_context=context, **more)
    if schedule.launch.workers > device.sm_count:
        schedule = plan(model, target, max_context=context, workers=device.sm_count, **more)
    return schedule


def check(subject: Any, positions: tuple[int, ...]) -> None:
    """Logits as close to fp64 as torch's bf16, the token that fp64 chooses unless rounding decides, twice the same."""
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance

    schedule = subject.schedule
    assert subject.engine.launch.grid == schedule.launch.workers
    used = subject.engine.kernel.dynamic_smem + subject.engine.kernel.static_smem
    assert used <= schedule.target.smem_per_block
    for pos in positions:
        subject.load_cache()
        found = subject.logits(9, pos)
        chosen = int(subject.engine.read("output", np.int32, 1)[0])
        assert chosen == int(found.argmax()), f"position {pos}"
        reference = subject.torch_logits(9, pos, torch.float64)
        error = relative_error(found, reference)
        torch_error = relative_error(subject.torch_logits(9, pos, torch.bfloat16), reference)
        assert within_tolerance(error, torch_error), f"position {pos}: {error:.3e}, torch's {torch_error:.3e}"
        worst = float((found.double() - reference.double()).abs().max())
        assert float(reference.max() - reference[chosen]) <= 2 * worst, f"position {pos}: token {chosen}"
        assert torch.equal(found, subject.logits(9, pos)), f"position {pos} is not reproducible"


@pytest.mark.parametrize(("model", "gpu"), CASES, ids=lambda value: getattr(value, "name", value))
def test_logits_with_another_targets_grid(model: ModelSpec, gpu: str, torch_gpu: Device) -> None:
    from amk.lowering.kernel import build
    from tests.gpu.subjects import loaded

    schedule = retargeted(model, gpu, torch_gpu, CONTEXT)
    with loaded(schedule, weights_of(model), image=build(schedule).compiled.ptx) as subject:
        check(subject, POSITIONS)


@pytest.mark.parametrize(("model", "gpu", "form"), FAR_CASES, ids=lambda value: getattr(value, "name", value))
def test_every_format_at_far_positions(model: ModelSpec, gpu: str, form: FormatName, torch_gpu: Device) -> None:
    from amk.lowering.kernel import build
    from tests.gpu.subjects import loaded

    schedule = retargeted(model, gpu, torch_gpu, FAR_CONTEXT, formats=formats(form))
    with loaded(schedule, weights_of(model), image=build(schedule).compiled.ptx) as subject:
        check(subject, FAR_POSITIONS)
