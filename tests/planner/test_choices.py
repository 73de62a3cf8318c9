"""Order of steps, who attends, who polls and which vectors are tagged are choices: each is planned, proved, timed,
lowered, and compiled for copies of both kinds; its tokens are compared in tests/engine/test_interpreter_tokens.py."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from amk.lowering.emit import emit
from amk.lowering.kernel import build
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.settings import FAST, Settings
from amk.planner.shares import attention_tables
from amk.report.diagnostic import AmkError
from amk.schedule_ir.ops import WaitOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.prefetch_cache import PrefetchCacheOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.ops.stage_norm import StageNormOp
from amk.schedule_ir.sampling import Mode
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.simulator.predict import step_ms
from amk.targets.target import load_target
from amk.validator.verify import verify
from tests.cases import cases
from tests.tiny import VARIANTS, tiny

MODEL = tiny("small", layers=2, hidden=512, ffn=1024, heads=8, kv_heads=4, vocab=4096)
BASE = replace(FAST, plan="search", warps=4, slots=3)
CHOICES: list[dict[str, Any]] = [
    {"refill_first": True}, {"refill_early": True}, {"prefetch_at": "product"}, {"prefetch_at": "published"},
    {"attends": "spread"}, {"attends": "light"}, {"handoff": "narrow"}, {"pollers": "all"},
    {"hint_at": "summed"}, {"hint_at": "drained"}, {"paced": True}, {"carried": 0.5},
    {"hints": "many"}, {"hints": "few"}, {"hints": "act"}, {"act_slack": 1}, {"paced": True, "refill_late": True},
]  # fmt: skip
TOGETHER: list[dict[str, Any]] = [
    {"refill_first": True, "refill_early": True, "prefetch_at": "product", "attends": "spread", "pollers": "all"},
    {"refill_early": True, "attends": "light", "head_handoff": True, "handoff": "narrow", "pollers": "all"},
    {"refill_first": True, "hint_at": "drained", "pollers": "all", "act_parts": 2},
    {"hints": "few", "act_slack": 1, "hint_at": "drained", "head_handoff": True, "reduce_from": 2, "kv_splits": 4},
    {"hints": "many", "act_slack": 1, "pollers": "all", "act_parts": 2, "paced": True},
]


def planned(settings: Settings, gpu: str) -> Schedule:
    return plan(MODEL, load_target(gpu), settings=settings, max_context=2048, workers=30)


def order(schedule: Schedule, *ops: type) -> list[str]:
    """The ops of a token in order: products by their matrices, those of the given types by their names."""
    found = (step.op for step in steps_of(schedule.programs[0].body))
    return [op.matrix if isinstance(op, GemvOp) else op.op for op in found if isinstance(op, (GemvOp, *ops))]


@pytest.mark.turns(12)
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
    idle = {"refill_first": not held, "refill_early": not held, "paced": not held, "carried": not held}
    idle |= dict.fromkeys(("pollers", "hint_at", "hints", "act_slack"), handoff == "fenced")
    assert (emit(after) != emit(before)) != any(idle.get(name, False) for name in change)
    assert step_ms(after, 200) > 0


PAIRS = [(changes, gpu) for changes in TOGETHER for gpu in ("h200", "a100")]


@pytest.mark.turns(48)
@pytest.mark.parametrize(("changes", "gpu"), PAIRS if cases(0, 1) else [PAIRS[n] for n in (0, 3, 4, 6, 9)])
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


@pytest.mark.turns(4)
@pytest.mark.parametrize("model", VARIANTS, ids=lambda m: m.name)
@pytest.mark.parametrize("sampling", ["greedy", "top-k-top-p"])
def test_all_warps_look_for_words_and_the_widest_vector_is_fenced(model: ModelSpec, sampling: Mode) -> None:
    """Attention's waits keep their barriers."""
    settings = replace(BASE, handoff="narrow", pollers="all", sampling=sampling)
    schedule = plan(model, load_target("h200"), settings=settings, max_context=256, workers=8)
    assert verify(schedule).safe
    kinds = {counter.name: counter.handoff for counter in schedule.counters}
    assert kinds["act"] == "fenced" and kinds["h_mid"] == kinds["attn"] == "hint"
    waits = [step for step in steps_of(schedule.programs[0].body) if isinstance(step.op, WaitOp)]
    assert {w.counter for step in waits if step.op.role == "all" for w in step.waits} == {"h_mid", "h_out"}


def test_fences_and_words_do_not_order_activations_where_workers_own_no_rows() -> None:
    with pytest.raises(AmkError, match="AMK406"):
        plan(VARIANTS[0], load_target("h200"), settings=replace(BASE, handoff="narrow"), max_context=256, workers=30)


def test_which_words_have_hints_and_when_the_activations_are_looked_for() -> None:
    """Words without a hint have no counter; those of fences keep theirs, and so do all where some worker has no rows
    of a matrix, because nothing else holds that one back."""
    every = {"qkv", "split", "attn", "h_mid", "act", "h_out", "best"}
    left = {"all": every, "many": every - {"qkv", "split"}, "few": {"attn", "act", "best"}, "act": {"act", "best"}}
    for hints, counters in left.items():
        changed = replace(BASE, handoff="tagged", hints=hints, act_slack=1, reduce_from=2, kv_splits=4)
        schedule = planned(changed, "h200")
        steps = list(steps_of(schedule.programs[0].body))
        signalled = {signal.counter for step in steps for signal in step.signals}
        assert {counter.name for counter in schedule.counters} == signalled == counters | {"attn"}
        least = {wait.counter: wait.at_least for step in steps for wait in step.waits}
        assert least.keys() == counters and least["act"] == {"t": 30, "1": 1}
        assert least["best"] == {"t": 30, "1": 27} and verify(schedule).safe
        fenced = planned(replace(changed, handoff="fenced"), "h200")
        assert {counter.name for counter in fenced.counters} == every and verify(fenced).safe
        few = plan(VARIANTS[0], load_target("h200"), settings=changed, max_context=256, workers=30)
        assert {counter.name for counter in few.counters} >= every - {"split"} and verify(few).safe


def test_without_the_barrier_behind_attention_arrays_that_overlay_race() -> None:
    """What `program.APART` leaves out."""
    schedule = planned(replace(BASE, handoff="tagged"), "h200")
    data = schedule.model_dump(mode="json")
    body = data["programs"][0]["body"][1]["body"][1]["body"]
    (place,) = (i for i, step in enumerate(body) if any(w["counter"] == "attn" for w in step["waits"]))
    assert body[place + 1]["op"]["op"] == "barrier"
    body[place]["op"]["role"] = "all"
    del body[place + 1]
    verdict = verify(Schedule.model_validate_json(json.dumps(data)))
    assert verdict.status == "UNSAFE" and verdict.diagnostics[0].code == "AMK302"


def test_heads_spread_or_served_by_those_that_stream_least() -> None:
    load = [3, 1, 2, 1, 3, 1, 1]
    first = attention_tables(2, 2, load)
    assert first["attn.head"] == (0, 0, 1, 1, -1, -1, -1) and first["attn.split"] == (0, 1, 0, 1, 0, 0, 0)
    spread = attention_tables(2, 2, load, "spread")
    assert spread["attn.head"] == (0, 1, 0, 1, -1, -1, -1) and spread["attn.split"] == (0, 0, 1, 1, 0, 0, 0)
    light = attention_tables(2, 2, load, "light")
    assert light["attn.head"] == (-1, 0, -1, 0, -1, 1, 1) and light["attn.serves"] == (0, 1, 0, 1, 0, 1, 1)
    assert light["attn.gate"] == (0, 0, 0, 0, 0, 1, 1)


def test_refills_of_down_are_owed_through_qkv_and_no_other_product() -> None:
    """They go out behind QKV, one at a time."""
    schedule = planned(replace(BASE, carried=2 / 3, held_refills=2 / 3, first_refills=0.0), "h200")
    found = order(schedule, RefillOp)
    assert found == ["qkv", "refill", "refill", "o", "gate_up", "refill", "down", "lm_head", "refill"]
    ops = [step.op for step in steps_of(schedule.programs[0].body)]
    deferred = {op.matrix: op.deferred for op in ops if isinstance(op, GemvOp)}
    assert deferred == {"qkv": 2, "o": 0, "gate_up": 2, "down": 2, "lm_head": 2} and schedule.streams[0].slots == 3
    assert [op.most for op in ops if isinstance(op, RefillOp)] == [1, 1, 2, 2]


def test_late_refills_begin_behind_what_reads_the_result() -> None:
    """As many go out, each behind attention instead of in front of it, and of O behind the staging of its sums."""
    early, late = (planned(replace(BASE, paced=True, refill_late=late), "h200") for late in (False, True))
    read = AttendOp, StageNormOp, RefillOp
    attention, o = slice(0, 4), slice(4, 7)
    found, moved = order(early, *read), order(late, *read)
    assert found[attention] == ["qkv", "refill", "refill", "attend"] and found[o] == ["o", "refill", "stage_norm"]
    assert moved[attention] == ["qkv", "attend", "refill", "refill"] and moved[o] == ["o", "stage_norm", "refill"]
    assert found[7:] == moved[7:]
    sums = [
        sum(s.op.most for s in steps_of(schedule.programs[0].body) if isinstance(s.op, RefillOp))
        for schedule in (early, late)
    ]
    assert sums[0] == sums[1] and verify(late).safe
