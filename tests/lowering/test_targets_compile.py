"""Every architecture, several models, both plans: compiled without a GPU, within registers, spills, shared memory."""

from __future__ import annotations

import pytest

from amk.lowering.kernel import build
from amk.planner.decode import plan
from amk.planner.settings import PRESETS
from amk.schedule_ir.model import load_model
from amk.schedule_ir.target import load_target

ONE_PER_ARCH = {
    "sm_80": "a100", "sm_86": "a10g", "sm_89": "l4", "sm_90a": "h200", "sm_100a": "b200", "sm_120a": "rtx5090",
}  # fmt: skip
CASES = [
    *(("fast", name) for name in ("smollm2-135m", "qwen2.5-0.5b", "qwen3-0.6b", "llama3.2-1b", "llama3-8b")),
    *(("naive", name) for name in ("smollm2-135m", "llama3.2-1b")),
]


@pytest.mark.parametrize("arch", sorted(ONE_PER_ARCH))
@pytest.mark.parametrize(("preset", "name"), CASES)
def test_compiles_within_its_budget(preset: str, name: str, arch: str) -> None:
    target = load_target(ONE_PER_ARCH[arch])
    assert target.arch == arch
    schedule = plan(load_model(name), target, settings=PRESETS[preset])
    built = build(schedule)
    assert built.compiled.cubin[:4] == b"\x7fELF"
    assert built.resources.spill_stores == built.resources.spill_loads == 0
    assert built.resources.registers <= schedule.launch.registers
    assert built.shared_bytes <= target.smem_per_block
