"""Plans whose layers differ in their formats: a loop for each run of layers, proved, checked, compiled and timed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from amk.checker.certificate import check_certificate
from amk.lowering.kernel import build
from amk.models.matrices import LAYERED
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import Layered, formats, layered, runs_of
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.memory import LayerChunks
from amk.schedule_ir.schedule import Loop, Schedule, Step
from amk.simulator.predict import predict, step_ms
from amk.targets.target import load_target
from amk.validator import verify as deciding
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.induction.layers import KEPT, reduce_layers
from amk.validator.verify import verify
from tests.damage import raised_threshold, rewritten
from tests.tiny import tiny

MODEL = tiny(layers=9, hidden=256, ffn=512)
EIGHT, FOUR = formats("int8", "int8"), formats("int4-g64", "int8")
PLAIN = formats("bf16", "int8") | {"o": "int4-g128"}
WANTED: Layered = ((4, EIGHT), (5, FOUR))


def plan_of(layers: Layered = WANTED) -> Schedule:
    return plan(MODEL, load_target("h200"), formats=layers, max_context=64, workers=8)


made_uniform = plan(MODEL, load_target("h200"), formats=EIGHT, max_context=64, workers=8)


def loops(schedule: Schedule) -> list[Loop]:
    (token,) = (node for node in schedule.programs[0].body if isinstance(node, Loop))
    return [node for node in token.body if isinstance(node, Loop)]


def with_changes(schedule: Schedule, *later: LayerChunks) -> Schedule:
    (stream,) = schedule.streams
    return schedule.model_copy(update={"streams": (stream.model_copy(update={"later": later}),)})


def edited(change: Any) -> Schedule:
    data = plan_of().model_dump(mode="json")
    change(data)
    return Schedule.model_validate_json(json.dumps(data))


def test_a_run_of_equal_layers_is_a_loop() -> None:
    assert runs_of([EIGHT, EIGHT, FOUR]) == ((2, EIGHT), (1, FOUR))
    schedule = plan(MODEL, load_target("h200"), formats=runs_of([EIGHT] * 9), max_context=64, workers=8)
    assert schedule == made_uniform and not schedule.streams[0].later
    assert [loop.count for loop in loops(plan_of())] == [4, 5]
    assert plan_of().weights_label == LAYERED
    (stream,) = plan_of().streams
    assert [stream.chunk("o", layer).format for layer in (0, 3, 4, 8)] == ["int8", "int8", "int4-g64", "int4-g64"]
    assert stream.chunk("lm_head", 8).format == "int8"


def test_narrower_formats_in_some_layers_are_fewer_bytes() -> None:
    model, target = load_model("smollm2-135m"), load_target("h200")
    plans = [plan(model, target, formats=w, max_context=64) for w in (EIGHT, ((15, EIGHT), (15, FOUR)), FOUR)]
    sizes = [next(b.bytes for b in schedule.buffers if b.name == "weights") for schedule in plans]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3


@pytest.mark.turns(12)
@pytest.mark.parametrize("layers", [WANTED, ((1, PLAIN), (8, EIGHT)), ((3, FOUR), (3, PLAIN), (3, EIGHT))])
def test_such_plans_are_safe_and_checked(layers: Layered) -> None:
    schedule = plan_of(layers)
    reduced = reduce_layers(schedule)
    assert [loop.count for loop in loops(reduced)] == [min(KEPT, count) for count, _ in layers]
    verdict = verify(schedule)
    assert verdict.safe and verdict.stats["layers checked"] == reduced.model.layers
    certificate = json.loads(json.dumps(certify_schedule(schedule, checked=False)))
    assert check_certificate(schedule, schedule_hash(schedule), certificate).reason == ""


def test_the_whole_schedule_gets_the_verdict_of_the_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "reduce_layers", lambda schedule: schedule)
    verdict = verify(plan_of())
    assert verdict.safe and verdict.stats["layers checked"] == 9


@pytest.mark.turns(4)
def test_a_mistake_in_the_second_loop_is_found() -> None:
    """A wait that nobody ends, and a step without its wait; both in the second loop only, and judged on all layers."""
    stuck = verify(raised_threshold(plan_of(), "act.1"))
    assert (stuck.status, stuck.diagnostics[0].code) == ("UNSAFE", "AMK201")
    assert stuck.stats["layers checked"] == 9

    def drop(step: Step) -> Step | None:
        return None if any(wait.counter == "h_out.1" for wait in step.waits) else step

    fenced = plan(
        MODEL, load_target("h200"), settings=replace(FAST, handoff="fenced"), formats=WANTED, max_context=64, workers=8
    )
    assert verify(fenced).safe
    assert verify(rewritten(fenced, drop)).status == "UNSAFE"


def test_chunks_do_not_change_within_a_loop() -> None:
    (change,) = plan_of().streams[0].later
    for first in (3, 5):
        moved = with_changes(plan_of(), change.model_copy(update={"first": first}))
        verdict = verify(moved)
        assert verdict.status == "UNSAFE" and "AMK405" in {d.code for d in verdict.diagnostics}
        certificate = json.loads(json.dumps(certify_schedule(plan_of())))
        claims = certificate | {"schedule": schedule_hash(moved)}
        assert check_certificate(moved, schedule_hash(moved), claims).reason != ""


def test_changes_ascend_and_leave_lm_head_alone() -> None:
    (change,) = plan_of().streams[0].later
    twice = verify(with_changes(plan_of(), change, change))
    assert any(d.code == "AMK405" and "from layers [4, 4]" in d.message for d in twice.diagnostics)
    head = LayerChunks(first=4, chunks={**change.chunks, "lm_head": change.chunks["o"]})
    assert any(d.code == "AMK405" for d in verify(with_changes(plan_of(), head)).diagnostics)


def test_a_layer_of_another_loop_is_missed() -> None:
    """The second loop begins a layer late: one layer is run twice, another never."""

    def late(data: dict[str, Any]) -> None:
        second = data["programs"][0]["body"][1]["body"][2]
        for step in second["body"]:
            if step["op"].get("op") == "gemv" and step["op"]["matrix"] == "o":
                step["op"]["layer"]["1"] -= 1

    codes = {d.code for d in verify(edited(late)).diagnostics}
    assert codes & {"AMK106", "AMK405"}


def test_runs_are_all_layers_with_one_lm_head() -> None:
    with pytest.raises(ValueError, match="9"):
        layered(MODEL, ((4, EIGHT), (4, FOUR)))
    with pytest.raises(ValueError, match="lm_head"):
        layered(MODEL, ((4, EIGHT), (5, formats("int8", "bf16"))))
    with pytest.raises(AmkError, match="AMK016"):
        plan_of(((4, formats("fp8", "int8")), (5, formats("bf16", "int8"))))


@pytest.mark.turns(4)
def test_compiles_without_spills() -> None:
    built = build(plan_of(((3, FOUR), (3, PLAIN), (3, EIGHT))))
    assert built.resources.spill_loads == 0 and built.resources.registers <= built.schedule.launch.registers
    assert "Plan::O1" in built.source and "Plan::O2" in built.source


def test_time_lies_between_that_of_its_runs() -> None:
    sides = sorted(step_ms(plan_of(((9, forms),)), 16) for forms in (EIGHT, FOUR))
    assert sides[0] <= step_ms(plan_of(), 16) <= sides[1] * 1.01
    assert predict(plan_of(), 16).ms == step_ms(plan_of(), 16)
