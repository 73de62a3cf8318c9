"""Order of steps and who attends are choices: each is planned, proved, timed, lowered, and compiled for copies of both
kinds; what it computes is compared with the reference in tests/engine/test_interpreter_tokens.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amk.lowering.emit import emit
from amk.lowering.kernel import build
from amk.planner.decode import plan
from amk.planner.settings import FAST, Settings
from amk.planner.shares import attention_tables
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.prefetch_cache import PrefetchCacheOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.schedule_ir.target import load_target
from amk.simulator.predict import step_ms
from amk.validator.verify import verify
from tests.tiny import tiny

MODEL = tiny("small", layers=2, hidden=512, ffn=1024, heads=8, kv_heads=4, vocab=4096)
BASE = replace(FAST, plan="search", warps=4, slots=3)
CHOICES: list[dict[str, Any]] = [
    {"refill_first": True}, {"refill_early": True}, {"prefetch_at": "product"}, {"prefetch_at": "published"},
    {"attends": "spread"}, {"attends": "light"},
]  # fmt: skip
TOGETHER: list[dict[str, Any]] = [
    {"refill_first": True, "refill_early": True, "prefetch_at": "product", "attends": "spread"},
    {"refill_early": True, "prefetch_at": "published", "attends": "light", "head_handoff": True},
]


def planned(settings: Settings, gpu: str) -> Schedule:
    return plan(MODEL, load_target(gpu), settings=settings, max_context=2048, workers=30)


def order(schedule: Schedule, *ops: type) -> list[str]:
    """The ops of a token in order: products by their matrices, those of the given types by their names."""
    found = (step.op for step in steps_of(schedule.programs[0].body))
    return [op.matrix if isinstance(op, GemvOp) else op.op for op in found if isinstance(op, (GemvOp, *ops))]


@pytest.mark.parametrize("handoff", ["tagged", "fenced"])
@pytest.mark.parametrize("gpu", ["h200", "a100"])
@pytest.mark.parametrize("change", CHOICES, ids=str)
def test_a_choice_is_another_kernel_that_is_safe(change: dict[str, Any], gpu: str, handoff: Any) -> None:
    base = replace(BASE, handoff=handoff)
    before, after = planned(base, gpu), planned(replace(base, **change), gpu)
    verdict = verify(after)
    assert verdict.safe, [diagnostic.message for diagnostic in verdict.diagnostics]
    held = any(isinstance(step.op, RefillOp) for step in steps_of(before.programs[0].body))
    assert held == load_target(gpu).has("bulk_copy"), "only bulk copies are held back"
    assert (emit(after) != emit(before)) == (held or not next(iter(change)).startswith("refill"))
    assert step_ms(after, 200) > 0


@pytest.mark.parametrize("gpu", ["h200", "a100"])
@pytest.mark.parametrize("changes", TOGETHER, ids=["one", "two"])
def test_choices_together_are_safe_and_compile(changes: dict[str, Any], gpu: str) -> None:
    schedule = planned(replace(BASE, **changes), gpu)
    assert verify(schedule).safe
    built = build(schedule)
    assert built.resources.spill_stores == built.resources.spill_loads == 0
    assert built.resources.registers <= schedule.launch.registers


def test_where_the_cache_is_asked_for() -> None:
    for place, before in (("layer", "prefetch_cache"), ("product", "qkv"), ("published", "qkv")):
        found = order(planned(replace(BASE, prefetch_at=place), "h200"), PrefetchCacheOp)
        assert found[0] == before and sorted(found[:2]) == ["prefetch_cache", "qkv"]
    assert "prefetch_cache" not in order(planned(replace(BASE, prefetch_cache=False, prefetch_at="product"), "h200"))


def test_heads_spread_or_served_by_those_that_stream_least() -> None:
    load = [3, 1, 2, 1, 3, 1, 1]
    first = attention_tables(2, 2, load)
    assert first["attn.head"] == (0, 0, 1, 1, -1, -1, -1) and first["attn.split"] == (0, 1, 0, 1, 0, 0, 0)
    spread = attention_tables(2, 2, load, "spread")
    assert spread["attn.head"] == (0, 1, 0, 1, -1, -1, -1) and spread["attn.split"] == (0, 0, 1, 1, 0, 0, 0)
    light = attention_tables(2, 2, load, "light")
    assert light["attn.head"] == (-1, 0, -1, 0, -1, 1, 1) and light["attn.serves"] == (0, 1, 0, 1, 0, 1, 1)
    assert light["attn.gate"] == (0, 0, 0, 0, 0, 1, 1)
