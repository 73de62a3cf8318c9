"""A warp's lanes meet between two of its steps that use the same memory, if the schedule has nothing between them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Literal

import pytest

from amk.adversary.confusion import mutation
from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.lowering.emit import emit
from amk.lowering.lanes import lane_barriers, met_before
from amk.lowering.printed import printed
from amk.planner.decode import plan
from amk.planner.settings import FAST, NAIVE, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.ops import Op
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.targets.target import load_target
from amk.validator.program.trace import sites, trace
from amk.validator.verify import verify
from tests.lowering.test_skeleton import judge
from tests.tiny import tiny

MEETING = "amk::sync::warp_barrier();"


@pytest.mark.parametrize(
    ("settings", "behind_words"), [(FAST, {"embed", "finish"}), (NAIVE, set())], ids=["fast", "naive"]
)
def test_plans_have_barriers_of_the_block_there(settings: Settings, behind_words: set[str]) -> None:
    """But between the words of the candidates and what follows the choice."""
    schedule = plan(tiny(layers=2), load_target("h200"), settings=settings, max_context=128, workers=4)
    names = [step.op.op for program in schedule.programs for step in steps_of(program.body)]
    found = lane_barriers(schedule)
    assert sum(found) == len(behind_words)
    assert {name for name, needed in zip(names, found, strict=True) if needed} == behind_words


@pytest.mark.parametrize("name", SMALL_BASES)
def test_lanes_meet_between_flag_words_and_what_else_a_warp_uses(name: str) -> None:
    """By the steps as they run: the order that a verdict takes from words is that of whole steps of a warp."""
    schedule, between = Schedule.model_validate_json(json.dumps(base(name))), 0
    memory = {b.name for b in schedule.buffers if b.role != "constant"}
    words = {b.name for b in schedule.buffers if b.tagged}
    printed = iter(lane_barriers(schedule))
    for number in range(len(schedule.programs)):
        run = trace(schedule, number, 2)
        meets = {site.path: next(printed) for site in sites(run.program, number)}
        for warp in range(run.warps):
            used: set[str] = set()
            for item in run.items:
                step, named = item.step, memory & {v for _, v in item.step.op if isinstance(v, str)}
                if warp not in run.roles[step.op.role]:
                    continue
                if meets[item.site.path] or step.waits or step.op.op == "barrier":
                    used = set()
                named = named if type(step.op).accesses is not Op.accesses else set()
                assert not (used and named and words & (used | named)), (item.site.path, used, named)
                between += bool(words & named)
                used = set() if step.signals else used | named
    assert between > 10 or not words


@pytest.fixture(scope="module")
def bare() -> Schedule:
    """SAFE, and no barrier between a product and the sum of its parts by the same warps."""
    schedule = mutation(24, "evidence/67/3").subject
    assert isinstance(schedule, Schedule) and verify(schedule).safe
    return schedule


def test_what_other_lanes_stored_is_read_behind_a_barrier_of_the_warp(bare: Schedule) -> None:
    steps = [step for program in bare.programs for step in steps_of(program.body)]
    places = [n for n, needed in enumerate(lane_barriers(bare)) if needed]
    assert [(steps[n - 1].op.op, steps[n].op.op) for n in places] == [("gemv", "add_residual")]
    source = emit(bare)
    call = source.index("amk::ops::add_residual<", source.index("amk::ops::add_residual<") + 1)
    product = source.rindex("amk::ops::gemv<", 0, call)
    assert source[product:call].count(MEETING) == 1


@pytest.mark.turns(4)
def test_a_kernel_without_it_is_refused(bare: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    judge(bare)
    with monkeypatch.context() as patch:
        patch.setattr("amk.lowering.printed.lane_barriers", lambda schedule: [False] * len(lane_barriers(schedule)))
        without = printed(bare)
    monkeypatch.setattr("amk.lowering.emit.printed", lambda schedule: without)
    with pytest.raises(AmkError, match="AMK607"):
        judge(bare)


@pytest.mark.turns(4)
@pytest.mark.parametrize("op", ["wait", "signal"])
def test_a_step_that_prints_nothing_is_no_meeting(op: str) -> None:
    """One warp a worker, whose barriers became waits for nothing, or signals of nothing."""
    settings = replace(NAIVE, plan="custom", warps=1)
    data = plan(tiny(layers=1), load_target("h200"), settings=settings, max_context=128, workers=2).model_dump(
        mode="json"
    )
    text = json.dumps(data).replace('"op": "barrier", "id": 1, "agents": 1', f'"op": "{op}"')
    schedule = Schedule.model_validate_json(text)
    assert '"barrier"' in json.dumps(data) and '"barrier"' not in text
    assert verify(schedule).safe
    needed = dict(zip(steps_at(schedule), lane_barriers(schedule), strict=True))
    assert all(needed[name] for name in ("attend", "merge", "gemv", "add_residual", "swiglu", "argmax_rows"))
    assert emit(schedule).count(MEETING) == sum(lane_barriers(schedule)) + _printed_meetings(schedule)
    judge(schedule)


def _printed_meetings(schedule: Schedule) -> int:
    """One for each wait, and one before the signals of a step."""
    steps = [step for program in schedule.programs for step in steps_of(program.body)]
    return sum(len(step.waits) + bool(step.signals) for step in steps)


STAGING = ("embed", "combine", "stage", "stage_norm", "stage_attention")


@pytest.mark.parametrize("pollers", ["one", "all"])
def test_vectors_are_staged_behind_a_barrier_of_all_warps(pollers: Literal["one", "all"]) -> None:
    """Also where all warps look: the product that read the array before ends at a barrier."""
    settings = replace(FAST, plan="custom", pollers=pollers, handoff="tagged")
    schedule = plan(tiny(layers=2), load_target("h200"), settings=settings, max_context=128, workers=4)
    steps = [step.op.op for program in schedule.programs for step in steps_of(program.body)]
    found = {name for name, met in zip(steps, met_before(schedule), strict=True) if met}
    assert found >= set(STAGING) & set(steps)
    assert emit(schedule).count("kMet = true") == sum(name in STAGING for name in steps)


@pytest.mark.parametrize("change", ["missing", "few", "apart"])
def test_a_barrier_that_is_missing_or_not_of_all_warps_is_not_enough(change: str) -> None:
    """Of all barriers between products and the staging behind them, in turn. apart: the first warp comes to the barrier
    before the step behind it, the others come to it after that step."""
    schedule = plan(tiny(layers=2), load_target("h200"), max_context=128, workers=4)
    data = schedule.model_dump(mode="json")
    data["roles"] += [{"name": "others", "first": 1, "count": schedule.launch.warps - 1}]
    token = next(node["body"] for node in data["programs"][0]["body"] if node.get("var") == "t")
    layer = next(node["body"] for node in token if node.get("var") == "l")
    assert all(met_before(schedule)[n] for n in _staging(schedule))
    kept, late = [], []
    for step in layer:
        if step["op"]["op"] != "barrier":
            kept += [step, *late]
            late = []
        elif change == "few":
            kept.append(step | {"op": step["op"] | {"role": "w0", "agents": 1}})
        elif change == "apart":
            kept.append(step | {"op": step["op"] | {"role": "w0"}})
            late.append(step | {"op": step["op"] | {"role": "others"}})
    layer[:] = kept
    changed = Schedule.model_validate_json(json.dumps(data))
    met = met_before(changed)
    assert not any(met[n] for n in _staging(changed) if steps_at(changed)[n] in ("stage", "stage_norm"))


def steps_at(schedule: Schedule) -> list[str]:
    return [step.op.op for program in schedule.programs for step in steps_of(program.body)]


def _staging(schedule: Schedule) -> list[int]:
    return [n for n, name in enumerate(steps_at(schedule)) if name in STAGING]
