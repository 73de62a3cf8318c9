"""Plans are proved, not trusted: every variant, short and long contexts, few and many SMs; and damage is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import pytest

from amk.adversary.edits import apply
from amk.adversary.recipe import strengthened
from amk.judges.oracle.judge import rule, start_positions
from amk.judges.replay import replay
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, PRESETS, Handoff, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.references import check_references
from amk.schedule_ir.sampling import MODES, Mode
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import constants_for
from amk.simulator.predict import step_ms
from amk.targets.target import load_target
from amk.validator.verify import verify
from amk.weights.weight_format import Chunk, FormatName
from tests.damage import raised_threshold, rewritten
from tests.engine.tiny import NEOX
from tests.tiny import PLAIN, VARIANTS, tiny

CASES = [
    *((model, gpu, context) for model in VARIANTS for gpu in ("h200", "l4") for context in (64, 1024)),
    *((load_model("smollm2-135m"), gpu, 256) for gpu in ("h200", "rtx5090")),
    (load_model("qwen2.5-0.5b"), "rtx5090", 256),
]


@pytest.mark.turns(4)
@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize(("model", "gpu", "context"), CASES, ids=lambda value: str(getattr(value, "name", value)))
def test_plans_are_safe(model: ModelSpec, gpu: str, context: int, preset: str) -> None:
    schedule = plan(model, load_target(gpu), settings=PRESETS[preset], max_context=context)
    verdict = verify(schedule)
    assert verdict.safe, [diagnostic.message for diagnostic in verdict.diagnostics]


@pytest.mark.turns(4)
@pytest.mark.parametrize("changes", [{}, {"headless": True}, {"tree": True}, {"accepts": True}], ids=str)
@pytest.mark.parametrize("rows", [2, 4, 8, 16, 32])
def test_default_steps_of_several_rows_are_safe(rows: int, changes: dict[str, Any]) -> None:
    """Of a model whose products drain their rings often, for which most settings differ from those of small ones."""
    settings = replace(FAST, rows=rows, **changes)
    verdict = verify(plan(load_model("llama3-8b"), load_target("h200"), settings=settings, max_context=2048))
    assert verdict.safe, [diagnostic.message for diagnostic in verdict.diagnostics]


def test_two_workers_of_an_sm_are_resident_or_refused() -> None:
    """Planned for two on an SM both fit; a third, or the shared memory of one alone, does not."""
    schedule = plan(VARIANTS[0], load_target("l4"), settings=replace(FAST, ctas_per_sm=2, warps=4), max_context=64)
    assert verify(schedule).safe
    launch, target = schedule.launch, schedule.target
    alone = target.smem_per_sm // 2
    for change in ({"ctas_per_sm": 3}, {"shared_bytes": alone}, {"registers": 255, "ctas_per_sm": 3}):
        verdict = verify(schedule.model_copy(update={"launch": launch.model_copy(update=change)}))
        assert [d.code for d in verdict.diagnostics] == ["AMK402"], change


@pytest.mark.parametrize("handoff", ["tagged", "fenced"])
def test_parts_of_down_wait_for_their_own_columns(handoff: Literal["tagged", "fenced"]) -> None:
    """Every part waits for fewer workers than there are; waiting for another part's is a race behind fences."""
    settings = replace(FAST, act_parts=2, handoff=handoff)
    schedule = plan(PLAIN, load_target("h200"), settings=settings, max_context=64, workers=8)
    assert verify(schedule).safe
    first, second = (schedule.tables[f"act.to.{part}"] for part in range(2))
    assert all(map(any, zip(first, second, strict=True))) and 0 in first and 0 in second and sum(first) == sum(second)
    data = schedule.model_dump(mode="json")
    body = data["programs"][0]["body"][1]["body"][1]["body"]
    waits = [w for step in body for w in step["waits"] if w["counter"] == "act"]
    assert [w["index"][1] for w in waits] == [0, 1] and {w["at_least"]["t"] for w in waits} == {sum(first)}
    waits[1]["index"][1] = 0
    verdict = verify(Schedule.model_validate_json(json.dumps(data)))
    assert verdict.status == ("UNSAFE" if handoff == "fenced" else "SAFE")


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_down_without_a_gate(parts: int) -> None:
    """A row group has twice the activations, and each has an owner."""
    model, settings = tiny(**NEOX | {"kv_heads": 4}), replace(FAST, act_parts=parts, chunk_bytes=512)
    schedule = plan(model, load_target("h200"), settings=settings, max_context=64, workers=8)
    assert verify(schedule).safe and len({sum(schedule.tables[f"act.to.{part}"]) for part in range(parts)}) == 1


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4-g64"])
def test_a_hidden_state_that_is_normed_as_a_whole_is_shared_in_whole_fetches(dtype: FormatName) -> None:
    """Whatever the format of the matrices that read it: each number of warps is refused or SAFE."""
    model, refused = tiny(**NEOX | {"hidden": 160}), list[int]()
    for warps in range(1, 9):
        settings = replace(FAST, warps=warps)
        try:
            schedule = plan(
                model, load_target("h200"), settings=settings, formats=formats(dtype), max_context=16, workers=8
            )
        except AmkError as error:
            assert error.diagnostics[0].code == "AMK406"
            refused.append(warps)
        else:
            assert verify(schedule).safe, warps
    assert set(refused) >= {3, 6, 7} and not {1, 2, 4, 8} & set(refused)


@pytest.mark.parametrize("several", [{}, {"rows": 2}, {"batch": 2}], ids=str)
@pytest.mark.parametrize("head_dim", [4, 8, 12, 18, 20, 24, 36, 40, 52, 56, 60])
def test_heads_that_no_lane_reads_in_whole_fetches_are_refused(head_dim: int, several: dict[str, int]) -> None:
    model, settings = tiny(head_dim=head_dim, heads=16, kv_heads=4, layers=1), replace(FAST, **several)
    if head_dim % 8:
        with pytest.raises(AmkError, match=rf"AMK011.*heads of {head_dim} elements"):
            plan(model, load_target("h200"), settings=settings, max_context=16, workers=8)
    else:
        assert verify(plan(model, load_target("h200"), settings=settings, max_context=16, workers=8)).safe


def test_parts_of_down_are_whole_chunks_of_one_sequence() -> None:
    model, target = load_model("qwen2.5-1.5b"), load_target("l4")
    with pytest.raises(AmkError, match="AMK406"):
        plan(model, target, settings=replace(FAST, act_parts=4), max_context=64)
    with pytest.raises(AmkError, match="AMK016"):
        plan(model, target, settings=replace(FAST, act_parts=2, batch=2), max_context=64)
    with pytest.raises(AmkError, match="codes") as refused:
        plan(model, target, settings=replace(FAST, act_parts=2), formats=formats("int8"), max_context=64)
    assert refused.value.diagnostics[0].code == "AMK016"


def test_a_single_sequence_is_not_live() -> None:
    with pytest.raises(AmkError, match=r"AMK016.*single sequence is live"):
        plan(VARIANTS[0], load_target("l4"), settings=replace(FAST, live=True), max_context=64)


def test_two_workers_of_an_sm_share_its_rates() -> None:
    """The simulator gives a worker that shares its SM half of what the SM receives."""
    constants = constants_for(load_target("a10g"))
    assert constants.shared_by(1) is constants
    assert constants.shared_by(2).sm_gbps * 2 == pytest.approx(constants.sm_gbps)
    two = plan(VARIANTS[0], load_target("a10g"), settings=replace(FAST, ctas_per_sm=2, warps=4), max_context=64)
    apart = two.model_copy(update={"launch": two.launch.model_copy(update={"ctas_per_sm": 1})})
    assert step_ms(two, 16, constants) == step_ms(apart, 16, constants.shared_by(2)) > step_ms(apart, 16, constants)


@pytest.mark.turns(4)
@pytest.mark.parametrize("handoff", ["tagged", "fenced"])
@pytest.mark.parametrize("mode", MODES)
def test_plans_that_draw_are_safe(mode: Mode, handoff: Literal["tagged", "fenced"]) -> None:
    settings = replace(FAST, sampling=mode, handoff=handoff)
    schedule = plan(PLAIN, load_target("h200"), settings=settings, max_context=256, workers=8)
    verdict = verify(schedule)
    assert verdict.safe, [diagnostic.message for diagnostic in verdict.diagnostics]


def drawing(**changes: Any) -> dict[str, Any]:
    """A plan that draws, as JSON, and its steps from `peak` on."""
    settings = replace(FAST, sampling="top-k-top-p", **changes)
    return plan(PLAIN, load_target("h200"), settings=settings, max_context=256, workers=8).model_dump(mode="json")


def without(op: str, occurrence: int = 0, behind: int = 0) -> Schedule:
    """The drawing plan without the step `behind` places after that occurrence of `op`."""
    data = drawing()
    body = data["programs"][0]["body"][1]["body"]
    places = [i for i, node in enumerate(body) if node.get("op", {}).get("op") == op]
    del body[places[occurrence] + behind]
    return Schedule.model_validate_json(json.dumps(data))


@pytest.mark.parametrize("number", [0, 6, 7, 13])
@pytest.mark.parametrize("op", ["census", "report", "gather", "narrow"])
def test_a_missing_step_of_a_round_is_unsafe(op: str, number: int) -> None:
    assert verify(without(op, number)).status == "UNSAFE"


@pytest.mark.parametrize(("op", "behind"), [("census", 1), ("report", 1), ("gather", 1)])
def test_a_round_without_its_synchronisation_is_unsafe(op: str, behind: int) -> None:
    """In turn: the barrier before the report, the wait for the other workers, the barrier behind the gathering."""
    assert verify(without(op, 3, behind)).status == "UNSAFE"


def test_rounds_in_another_order_are_unsafe() -> None:
    data = drawing()
    body = data["programs"][0]["body"][1]["body"]
    second, third = [node["op"] for node in body if node.get("op", {}).get("op") == "narrow"][2:4]
    second["round"], third["round"] = 3, 2
    assert verify(Schedule.model_validate_json(json.dumps(data))).status == "UNSAFE"


def test_taking_the_largest_logit_in_place_of_the_draw_is_unsafe() -> None:
    data = drawing()
    step = next(n for n in data["programs"][0]["body"][1]["body"] if n.get("op", {}).get("op") == "select_draw")
    step["op"] |= {"best_value": "best_value", "best_index": "best_index"}
    assert verify(Schedule.model_validate_json(json.dumps(data))).status == "UNSAFE"


@pytest.mark.parametrize("counter", ["draw", "census"])
def test_a_raised_threshold_of_the_draw_is_unsafe(counter: str) -> None:
    schedule = Schedule.model_validate_json(json.dumps(drawing()))
    assert verify(raised_threshold(schedule, counter)).status == "UNSAFE"


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("layers", "lm_head"), [("int8", "int8"), ("int4-g128", "bf16"), ("fp8", "int8-g64"), ("int4-g64-zp", "int4-g128")]
)
@pytest.mark.parametrize("model", [PLAIN, VARIANTS[1]], ids=lambda model: model.name)
def test_quantised_plans_are_safe(model: ModelSpec, layers: FormatName, lm_head: FormatName) -> None:
    for gpu in ("h200", "l4"):
        verdict = verify(plan(model, load_target(gpu), formats=formats(layers, lm_head), max_context=256))
        assert verdict.safe, [diagnostic.message for diagnostic in verdict.diagnostics]


@pytest.mark.parametrize("context", [256, 2048])
def test_plans_with_an_fp8_cache_are_safe(context: int) -> None:
    schedule = plan(PLAIN, load_target("h200"), settings=replace(FAST, kv_dtype="fp8"), max_context=context)
    assert verify(schedule).safe
    cache = next(buffer for buffer in schedule.buffers if buffer.name == "k_cache")
    assert cache.bytes == PLAIN.layers * PLAIN.kv_heads * context * PLAIN.head_dim


def test_a_cache_of_another_type_than_the_layout_is_refused() -> None:
    schedule = plan(PLAIN, load_target("h200"), settings=replace(FAST, kv_dtype="fp8"), max_context=256)
    other = schedule.model_copy(update={"kv": schedule.kv.model_copy(update={"dtype": "bf16"})})
    assert {diagnostic.code for diagnostic in check_references(other)} == {"AMK005"}


def test_a_chunk_that_is_no_whole_tile_is_refused() -> None:
    schedule = plan(PLAIN, load_target("h200"), formats=formats("int4-g128"), max_context=256)
    (stream,) = schedule.streams
    chunks = stream.chunks | {"o": Chunk(format="int4-g128", columns=160)}
    verdict = verify(schedule.model_copy(update={"streams": (stream.model_copy(update={"chunks": chunks}),)}))
    assert "AMK405" in {diagnostic.code for diagnostic in verdict.diagnostics}


IDLE = plan(PLAIN, load_target("h200"), settings=replace(FAST, handoff="tagged"), max_context=256, workers=72)
"""Of every matrix some of the 72 workers own no rows."""


def test_idle_workers_are_held_back_by_hints() -> None:
    """Their words are overwritten only by those who have seen all hints, theirs included.

    With 132 workers the first and the last own no rows of gate-up: what layers change is measured on others.
    """
    assert verify(IDLE).status == "SAFE"
    fenced = plan(PLAIN, load_target("h200"), settings=replace(FAST, handoff="fenced"), max_context=256, workers=132)
    assert verify(fenced).status == "SAFE"


@pytest.mark.turns(4)
def test_a_worker_that_publishes_nothing_is_a_race() -> None:
    """Without the hints nothing stops the others from overtaking the workers that own no rows."""
    most = plan(PLAIN, load_target("h200"), settings=replace(FAST, handoff="tagged"), max_context=256, workers=132)
    verdict = verify(rewritten(most, lambda step: None if step.waits else step))
    assert verdict.status == "UNSAFE" and verdict.diagnostics[0].code == "AMK302"
    assert verdict.evidence is not None
    assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())


NARROW = ModelSpec(
    name="narrow", source="made up for this test", layers=1, hidden=32, ffn=32, heads=2, kv_heads=1, head_dim=32,
    vocab=32, max_context=8, rms_eps=1e-5, rope_theta=10_000.0,
)  # fmt: skip
"""From 5 workers on some own no hidden rows, from 13 on some own nothing of a layer but queries, keys or values."""


def narrow(workers: int) -> Schedule:
    settings = replace(FAST, handoff="tagged", warps=1, kv_block=4)
    return plan(NARROW, load_target("h200"), settings=settings, workers=workers)


@pytest.mark.turns(4)
@pytest.mark.parametrize("workers", [*range(2, 16), 17, 23, 29, 30, 47, 64, 98, 132])
def test_tagged_words_are_safe_for_any_number_of_workers(workers: int) -> None:
    """Without looking at positions one by one. By hand every number from 2 to 132 was tried."""
    verdict = verify(narrow(workers))
    assert verdict.safe, [diagnostic.message for diagnostic in verdict.diagnostics]
    assert "positions checked" not in verdict.stats


def test_words_that_somebody_reads_at_every_position_order_what_came_before() -> None:
    """Worker 12 owns values and candidates only. Which split needs the values depends on the position, but one does,
    and the token's end follows from it: no fence is needed, and the check event by event sees it.
    """
    document = json.loads(narrow(13).model_dump_json())
    hinted = apply(document, strengthened(document, "best", ("hint", "relaxed", "relaxed")))[0]
    schedule = Schedule.model_validate_json(json.dumps(hinted))
    assert {table: schedule.tables[f"{table}.count"][12] for table in ("hidden", "gate_up")} == {
        "hidden": 0, "gate_up": 0
    }  # fmt: skip
    verdict = verify(schedule)
    assert verdict.safe and verdict.stats["positions checked"] == 8
    assert rule(schedule, 2, start_positions(schedule, 2)).status == "SAFE"


@pytest.mark.parametrize("counter", ["qkv", "attn", "h_mid", "act", "h_out", "best"])
def test_a_raised_threshold_is_unsafe(counter: str) -> None:
    """The schedules that the watchdog's test runs on a GPU are the ones that the validator refuses."""
    schedule = plan(PLAIN, load_target("h200"), max_context=256)
    assert verify(raised_threshold(schedule, counter)).status == "UNSAFE"


@pytest.mark.parametrize("handoff", ["tagged", "mixed", "fenced"])
def test_a_batch_whose_candidates_are_no_whole_fetches_is_refused(handoff: Handoff) -> None:
    """What is planned is SAFE, for whichever number of candidates; a single sequence has no such need."""
    for workers in (4, 5, 6, 8):
        settings = replace(FAST, handoff=handoff, warps=1, workers=workers, batch=2)
        fetch = 2 if handoff == "tagged" else 4
        assert verify(planned(replace(settings, batch=1))).safe
        if workers % fetch:
            with pytest.raises(AmkError, match="candidates"):
                planned(settings)
        else:
            assert verify(planned(settings)).safe


def planned(settings: Settings) -> Schedule:
    return plan(PLAIN, load_target("h200"), settings=settings, max_context=64, workers=settings.workers)
