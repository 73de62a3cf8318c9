"""Every kind of position, 0 to 131,071, on the real widths (fewer layers) and on ragged ones: logits against fp64.

Where attention goes wrong is at the edges of blocks, splits and caches: 0, 1, every power of two and its neighbours,
the last position. The cache is random, so a row read too few, too many or twice shows in the logits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.settings import FAST, NAIVE, Settings
from amk.targets.target import Target

pytestmark = pytest.mark.gpu

CONTEXT = 131_072


def sweep(context: int) -> list[int]:
    """0, 1, and 2^k - 1, 2^k, 2^k + 1 below `context`, with the last position."""
    edges = {(1 << k) + d for k in range(1, 18) for d in (-1, 0, 1)} | {0, context - 2, context - 1}
    return sorted(pos for pos in edges if 0 <= pos < context)


def cut(name: str, layers: int, vocab: int) -> ModelSpec:
    """A known model with fewer layers and rows of lm_head: its widths, heads and rotation are kept."""
    model = load_model(name)
    changes = {"layers": layers, "vocab": vocab, "max_context": CONTEXT, "bos": None, "eos": ()}
    return ModelSpec.model_validate(model.model_dump() | changes)


CASES = [
    pytest.param(cut("llama3.1-8b", 1, 4096), FAST, id="llama3.1-8b"),
    pytest.param(cut("llama3.2-1b", 2, 4096), FAST, id="llama3.2-1b"),
    pytest.param(cut("llama3.2-1b", 2, 4097), NAIVE, id="llama3.2-1b naive, odd vocabulary"),
    pytest.param(cut("llama3.1-8b", 1, 4096), replace(FAST, kv_dtype="fp8"), id="llama3.1-8b fp8 cache"),
    pytest.param(cut("smollm2-135m", 2, 4099), FAST, id="smollm2-135m, odd vocabulary"),
    pytest.param(cut("qwen2.5-0.5b", 2, 5001), FAST, id="qwen2.5-0.5b, odd vocabulary"),
]


@pytest.mark.parametrize(("model", "settings"), CASES)
def test_every_position_is_right(
    model: ModelSpec, settings: Settings, torch_gpu: Device, gpu: Target, record_property: Any
) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance
    from tests.gpu.subjects import loaded, planned

    worst, places = 0.0, sweep(CONTEXT)
    with loaded(planned(model, gpu, CONTEXT, settings)) as subject:
        assert subject.schedule.kv.context == CONTEXT
        for pos in places:
            subject.load_cache()
            token = (1000 + pos) % model.vocab
            found = subject.logits(token, pos)
            assert torch.isfinite(found).all(), f"position {pos}"
            reference = subject.torch_logits(token, pos, torch.float64)
            error = relative_error(found, reference)
            torch_error = relative_error(subject.torch_logits(token, pos, torch.bfloat16), reference)
            assert within_tolerance(error, torch_error), f"position {pos}: error {error:.3e}, torch's {torch_error:.3e}"
            worst = max(worst, error / torch_error)
    record_property("positions", len(places))
    record_property("worst_error_over_torch", round(worst, 3))
