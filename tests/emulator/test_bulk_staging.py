"""The kernels that `tests/gpu/race_bulk.py` races: bits of the kernel they are made of; their mistakes are told."""

from __future__ import annotations

import numpy as np
import pytest

from amk.emulator.decode import Result, run
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.planner.decode import plan
from amk.planner.settings import Settings
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.engine.tiny import RandomTensors, tiny_model
from tests.gpu.bulk_staging import bulk_source

MODEL = tiny_model(hidden=128, ffn=256, layers=2, kv_heads=1)
SHAPE = {"warps": 4, "chunk_bytes": 512, "kv_block": 8, "max_tokens": 8, "slots": 4}


def scheduled() -> Schedule:
    """Two parts of `down` fit in x: 64 columns each, in rows of 160."""
    settings = Settings(batch=3, k_parts=4, handoff="fenced", handoff_dtype="bf16", **SHAPE)
    return plan(MODEL, load_target("h200"), settings=settings, max_context=16, workers=3)


def ran(schedule: Schedule, source: str) -> Result:
    ptx = compile_ptx(source, schedule.target.arch)
    return run(schedule, RandomTensors(MODEL), ptx, prompts=[[3, 17], [40], [7]], tokens=2, launches=2, races=True)


@pytest.mark.turns(2)
@pytest.mark.parametrize("meet", [True, False])
def test_bulk_copies_give_the_same_bits_without_a_race(meet: bool) -> None:
    schedule = scheduled()
    expected, found = ran(schedule, emit(schedule)), ran(schedule, bulk_source(schedule, meet=meet))
    assert found.ended and [str(fault) for fault in found.faults] == []
    assert np.array_equal(found.logits, expected.logits)
    assert np.array_equal(found.tokens, expected.tokens)


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("written", "edited", "kind"),
    [
        ("sync::fence_proxy_async_global();\n    sync::fence_proxy_async_shared();\n", "", "proxy"),
        ("rows * kBytes);", "rows * kBytes - 16);", "mbarrier"),
        ("before & 1);", "~before & 1);", "race"),
        ("if constexpr (kAhead && S::kKPart + 1 < S::kKParts) issue(S::kKPart + 1);",
         "if constexpr (kAhead && S::kKPart + 2 < S::kKParts) issue(S::kKPart + 2);", "race"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_staging_is_told(written: str, edited: str, kind: str) -> None:
    schedule = scheduled()
    source = bulk_source(schedule)
    assert source.count(written) == 1
    result = ran(schedule, source.replace(written, edited))
    assert kind in {fault.kind for fault in result.faults}, [str(fault) for fault in result.faults][:3]
