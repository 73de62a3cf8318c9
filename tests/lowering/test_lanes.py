"""A warp's lanes meet between two of its steps that use the same memory, if the schedule has nothing between them."""

from __future__ import annotations

import pytest

from amk.adversary.confusion import mutation
from amk.lowering.emit import emit
from amk.lowering.lanes import lane_barriers
from amk.planner.decode import plan
from amk.planner.settings import FAST, NAIVE, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.schedule_ir.target import load_target
from amk.validator.verify import verify
from tests.lowering.test_skeleton import judge
from tests.tiny import tiny

MEETING = "amk::sync::warp_barrier();"


@pytest.mark.parametrize("settings", [FAST, NAIVE], ids=["fast", "naive"])
def test_plans_have_barriers_of_the_block_there(settings: Settings) -> None:
    schedule = plan(tiny(layers=2), load_target("h200"), settings=settings, max_context=128, workers=4)
    assert not any(lane_barriers(schedule))


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


def test_a_kernel_without_it_is_refused(bare: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    judge(bare)
    monkeypatch.setattr("amk.lowering.emit.lane_barriers", lambda schedule: [False] * len(lane_barriers(schedule)))
    with pytest.raises(AmkError, match="AMK607"):
        judge(bare)
