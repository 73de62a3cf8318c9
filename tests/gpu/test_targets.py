"""Plans for other GPUs: compiled to PTX of their architecture, run here with their grid and their shared memory."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from amk.lowering.cubin import arch_number
from amk.lowering.launch import Device
from amk.schedule_ir.model import load_model
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.target import load_target
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
    from amk.bench.torch_model import TorchWeights

    return TorchWeights.random(model, 5)


@pytest.mark.parametrize(("model", "gpu"), CASES, ids=lambda value: getattr(value, "name", value))
def test_logits_with_another_targets_grid(model: ModelSpec, gpu: str, torch_gpu: Device) -> None:
    import torch

    from amk.bench.accuracy import relative_error, within_tolerance
    from amk.lowering.kernel import build
    from tests.gpu.subjects import loaded, planned

    target = load_target(gpu)
    if target.smem_per_block > torch_gpu.shared_bytes_per_block:
        pytest.skip(f"{torch_gpu.name} has less shared memory than {gpu}")
    if arch_number(target.arch) > arch_number(torch_gpu.arch):
        pytest.skip(f"{torch_gpu.name} cannot run code for {target.arch}")
    # A GPU with more SMs than this one (L40S on an H200) is planned with as many workers as are resident here.
    workers = min(target.sms, torch_gpu.sm_count)
    schedule = planned(model, target, CONTEXT, workers=workers)
    built = build(schedule)
    with loaded(schedule, weights_of(model), image=built.compiled.ptx) as subject:
        assert subject.engine.launch.grid == workers
        assert subject.engine.kernel.dynamic_smem + subject.engine.kernel.static_smem <= target.smem_per_block
        for pos in POSITIONS:
            subject.load_cache()
            found = subject.logits(9, pos)
            reference = subject.torch_logits(9, pos, torch.float64)
            error = relative_error(found, reference)
            torch_error = relative_error(subject.torch_logits(9, pos, torch.bfloat16), reference)
            assert within_tolerance(error, torch_error), f"position {pos}: {error:.3e}, torch's {torch_error:.3e}"
            assert torch.equal(found, subject.logits(9, pos)), f"position {pos} is not reproducible"
