"""Batches whose workers serve several KV heads in turns: the verdict, its certificate, and the oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amk.adversary.edits import steps
from amk.checker.certificate import check_certificate
from amk.judges.oracle.judge import rule
from amk.planner.decode import plan
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import canonical_json, schedule_hash
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops.attention import Unit
from amk.schedule_ir.ops.base import Geometry
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from tests.engine.tiny import tiny_model, tiny_plan

TOUCHING = "all turns in one warp of one worker"
CASES: dict[str, dict[str, Any]] = {
    "a warp for each turn, words": {"workers": 4, "warps": 2, "batch": 3, "handoff": "tagged"},
    "two warps for each turn, fences": {"workers": 4, "warps": 4, "batch": 3, "handoff": "fenced"},
    TOUCHING: {"workers": 1, "warps": 2, "batch": 4, "context": 8},
}


def planned(name: str) -> Schedule:
    """In the last case the rows of four heads touch in the cache at the last position, where one warp reads all."""
    schedule = tiny_plan(tiny_model(layers=1, kv_heads=1 if name == TOUCHING else 2), **CASES[name])
    assert schedule.kv.turns == (4 if name == TOUCHING else 2)
    if name != TOUCHING:
        return schedule
    document = json.loads(schedule.model_dump_json())
    for _, step in steps(document):
        if step["op"]["op"] in ("rope_append", "attend", "merge"):
            step["op"] |= {"role": "w0"} | ({"attend_agents": 1} if "attend_agents" in step["op"] else {})
    return Schedule.model_validate_json(json.dumps(document))


@pytest.mark.parametrize("name", CASES)
def test_turns_are_safe_certified_and_right_by_definition(name: str) -> None:
    schedule = planned(name)
    verdict = verify(schedule)
    assert verdict.safe, verdict.diagnostics
    assert check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule, checked=False)).reason == ""
    assert rule(schedule, 2).status == "SAFE"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("turn", [0, -1])
def test_a_turn_whose_keys_nobody_appends_is_noticed(name: str, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = planned(name)
    certificate, left_out, whole = certify_schedule(schedule), turn % schedule.kv.turns, RopeAppendOp._of_unit

    def of_unit(op: RopeAppendOp, unit: Unit, env: Env, geo: Geometry) -> list[tuple[str, int, int, int]]:
        return [found for found in whole(op, unit, env, geo) if found[0] != "k" or unit.turn != left_out]

    monkeypatch.setattr(RopeAppendOp, "_of_unit", of_unit)
    assert not verify(schedule).safe
    assert check_certificate(schedule, schedule_hash(schedule), certificate).reason != ""


def test_schedules_of_one_turn_do_not_say_so() -> None:
    assert b'"turns"' not in canonical_json(tiny_plan(tiny_model(), workers=4, batch=2))
    assert b'"turns":2' in canonical_json(tiny_plan(tiny_model(), workers=4, batch=3))


@pytest.mark.turns(2)
@pytest.mark.parametrize("batch", [32, 64])
def test_wide_batches_of_a_large_model_are_planned_and_safe(batch: int) -> None:
    model = tiny_model(layers=1, hidden=256, ffn=512, heads=16, kv_heads=8, head_dim=32)
    schedule = plan(model, load_target("h200"), settings=Settings(batch=batch), max_context=64, workers=132)
    assert (schedule.kv.turns, schedule.turn_heads) == (batch // 16, 128)
    verdict = verify(schedule)
    assert verdict.safe, verdict.diagnostics


def test_heads_of_one_sequence_or_of_live_ones_have_workers_of_their_own() -> None:
    for settings in ({"batch": 1}, {"batch": 3, "live": True}):
        with pytest.raises(AmkError) as caught:
            tiny_plan(tiny_model(heads=8, kv_heads=4), workers=3, **settings)
        assert caught.value.diagnostics[0].code == "AMK011"
