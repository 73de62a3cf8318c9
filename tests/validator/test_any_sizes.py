"""The run of oddly sized plans: it tells of a need that is not there, and draws the same again."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.ops.stage_norm import StageNormOp
from amk.schedule_ir.schedule import Schedule
from tests.validator import any_sizes
from tests.validator.any_sizes import drawn, found_in, plan_of

PLAN = {"workers": 4, "kept": "bf16", "head": "bf16", "gpu": "h200"}
MODEL = {"layers": 1, "hidden": 64, "ffn": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "vocab": 40}


def odd(model: dict[str, Any], **settings: Any) -> Schedule:
    return plan_of(MODEL | model, {"warps": 1, "handoff": "fenced", "max_tokens": 8, "kv_block": 8} | settings, PLAN)


def without(op: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name in {need.name for need in op.needs}
    monkeypatch.setattr(op, "needs", tuple(need for need in op.needs if need.name != name))


def test_a_size_that_the_device_code_does_not_take_is_refused_by_a_need_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    long = odd({"hidden": 1280})
    assert found_in(long) == ("AMK407", "")
    without(StageNormOp, "one-batch", monkeypatch)
    assert found_in(long) == ("SAFE", "does not compile")


@pytest.mark.turns(2)
def test_an_odd_row_is_refuted_by_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    several = odd({}, rows=2)
    assert found_in(several) == ("run", "")
    buffers = [b.model_copy(update={"shape": (2, 129)}) if b.name == "qkv" else b for b in several.buffers]
    longer = several.model_copy(update={"buffers": tuple(buffers)})
    assert found_in(longer) == ("AMK407", "")
    without(RopeAppendOp, "row-pairs", monkeypatch)
    kind, wrong = found_in(longer)
    assert kind == "compiled" and "misaligned" in wrong


def test_draws_are_the_same_again_and_mostly_planned() -> None:
    assert [drawn(Random(n)) for n in range(50)] == [drawn(Random(n)) for n in range(50)]
    planned = 0
    for n in range(50):
        try:
            planned += isinstance(plan_of(*drawn(Random(n))).model, ModelSpec)
        except (AmkError, *any_sizes.CRASHES):
            continue
    assert planned > 20
