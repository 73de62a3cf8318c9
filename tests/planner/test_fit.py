"""Every shipped model on every target: a plan within the target's limits, or a refusal that says why."""

from __future__ import annotations

from typing import Any

import pytest

from amk.models.model import load_model, shipped_models
from amk.planner.decode import plan
from amk.planner.formats import chunk_widths, formats
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError
from amk.targets.target import STATIC_SMEM_PER_BLOCK, load_target, targets
from tests.tiny import PLAIN, tiny

_OF_32_GB = {"a100-40gb", "a100-80gb", "l20", "l40s", "h100", "h200", "b200", "rtx5090"}
_OF_80_GB = {"a100-80gb", "h100", "h200", "b200"}
TOO_LARGE = {
    "llama2-13b": _OF_32_GB,
    "qwen3-14b": _OF_32_GB,
    "qwen2.5-14b": _OF_32_GB,
    "qwen3-32b": _OF_80_GB,
    "qwen2.5-32b": _OF_80_GB,
    "llama3-70b": {"h200", "b200"},
}
"""Models that do not fit everywhere, and where they fit."""


@pytest.mark.turns(4)
@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("name", shipped_models())
def test_plans_stay_within_the_target(name: str, preset: str) -> None:
    for target in targets():
        if target.name not in TOO_LARGE.get(name, {target.name}):
            with pytest.raises(AmkError, match="AMK011") as caught:
                plan(load_model(name), target, settings=PRESETS[preset])
            lines = [fact.text for fact in caught.value.diagnostics[0].facts]
            assert any(line.startswith("sum") for line in lines)
            assert any(line.startswith("shortfall") for line in lines)
            continue
        schedule = plan(load_model(name), target, settings=PRESETS[preset])
        assert schedule.launch.shared_bytes + STATIC_SMEM_PER_BLOCK <= target.smem_per_block, target.name
        assert schedule.launch.workers <= target.sms
        assert schedule.launch.registers * schedule.launch.warps * 32 <= target.regs_per_sm
        assert schedule.streams[0].slots >= 2
        end = max((b.offset or 0) + b.bytes for b in schedule.buffers if b.space == "shared")
        assert end <= schedule.launch.shared_bytes


def test_chunks_divide_every_width() -> None:
    assert chunk_widths(PLAIN, 4096) == [128, 64, 32]
    with pytest.raises(AmkError, match="AMK011"):
        chunk_widths(tiny(hidden=120), 4096)


@pytest.mark.parametrize("workers", [0, 1])
def test_fewer_workers_than_kv_heads_are_refused(workers: int) -> None:
    with pytest.raises(AmkError, match="2 KV heads need as many workers"):
        plan(PLAIN, load_target("h200"), max_context=256, workers=workers)
    assert plan(PLAIN, load_target("h200"), max_context=256, workers=PLAIN.kv_heads).launch.workers == 2


def help_of(model: str, gpu: str, **changes: Any) -> str:
    with pytest.raises(AmkError) as caught:
        plan(load_model(model), load_target(gpu), **changes)
    return str(caught.value.diagnostics[0].help)


def test_a_refusal_names_the_formats_that_would_fit() -> None:
    none = "no context fits in bf16 on this GPU"
    assert help_of("llama3-70b", "h100") == f"{none}; largest in int8: 8,192, in int4-g128: 8,192"
    assert help_of("llama3-70b", "a10g") == none
    found = help_of("llama3.1-8b", "l4", max_context=131_072)
    assert found.startswith("largest context that fits in bf16: ") and ", in int8: " in found
    fits = int(found.rpartition(", in int4-g128: ")[2].replace(",", ""))
    schedule = plan(load_model("llama3.1-8b"), load_target("l4"), formats=formats("int4-g128"), max_context=fits)
    assert schedule.kv.context == fits
