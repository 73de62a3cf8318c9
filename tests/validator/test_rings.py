"""The stream lemma against exhaustive exploration of small rings with every copy as an event."""

from collections.abc import Callable

import pytest

from amk.judges.explore import explore, explore_memory
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step, steps_of
from amk.targets.target import load_target
from amk.validator.memory.flat import judge
from amk.validator.static.obligations import check_rings
from tests.validator.plans import small_plan
from tests.validator.ring_system import ring_system


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("chunks", [0, 1, 2, 4, 5])
def test_a_private_ring_is_safe_for_any_depth_and_length(slots: int, chunks: int) -> None:
    system = ring_system(slots, chunks)
    judged = judge(system)
    seen = explore(system)
    assert judged.safe and not seen.deadlock and not seen.races
    assert not explore_memory(system)


def test_refilling_before_the_read_is_a_race() -> None:
    system = ring_system(2, 4, drain_first=False)
    assert judge(system).races.racy and explore(system).races


def _codes(schedule: Schedule) -> set[str]:
    return {d.code for d in check_rings(schedule)}


def test_static_conditions_hold_for_plans_and_fail_one_by_one() -> None:
    schedule = small_plan()
    assert not list(check_rings(schedule))
    stream = schedule.streams[0]

    def codes(**change: object) -> set[str]:
        streams = (stream.model_copy(update=change),)
        return _codes(schedule.model_copy(update={"streams": streams}))

    assert codes(slots=stream.slots + 1) == {"AMK103"}
    assert codes(refill_fence=False) == {"AMK507"}
    assert "AMK106" in codes(role="w0")
    assert "AMK507" in codes(source="state")
    less = tuple(b.model_copy(update={"shape": (64,)}) if b.name == stream.source else b for b in schedule.buffers)
    assert _codes(schedule.model_copy(update={"buffers": less})) == {"AMK103"}
    longer = {name: tuple(64 * n for n in column) for name, column in schedule.tables.items()}
    assert _codes(schedule.model_copy(update={"tables": longer})) == {"AMK103"}


def test_ring_and_mbarriers_each_need_their_own_room() -> None:
    """With one slot more than there is room for in either, and with only one of the two made larger."""
    schedule = small_plan()
    stream = schedule.streams[0]
    more = schedule.model_copy(update={"streams": (stream.model_copy(update={"slots": stream.slots + 1}),)})

    def short(*larger: str | None) -> list[str]:
        buffers = tuple(
            b.model_copy(update={"shape": (2 * b.shape[0], *b.shape[1:]), "offset": 1 << 20}) if b.name in larger else b
            for b in schedule.buffers
        )
        found = check_rings(more.model_copy(update={"buffers": buffers}))
        return [d.message.split(" ")[1] if d.message.startswith("the") else "full" for d in found if d.code == "AMK103"]

    assert short() == ["ring", "full"]
    assert short(stream.full) == ["ring"] and short(stream.ring) == ["full"]


def test_a_ring_is_never_owed_whole_when_a_product_begins() -> None:
    schedule = plan(load_model("llama3.2-1b"), load_target("h200"), max_context=256)
    held = [s.op for p in schedule.programs for s in steps_of(p.body) if isinstance(s.op, GemvOp) and s.op.deferred]
    assert {op.matrix for op in held} == {"gate_up", "lm_head"}
    assert not list(check_rings(schedule))

    def codes(change: Callable[[Step], Step | None]) -> set[str]:
        def rewritten(body: tuple[Node, ...]) -> tuple[Node, ...]:
            out = (n.model_copy(update={"body": rewritten(n.body)}) if isinstance(n, Loop) else change(n) for n in body)
            return tuple(n for n in out if n is not None)

        programs = tuple(p.model_copy(update={"body": rewritten(p.body)}) for p in schedule.programs)
        return _codes(schedule.model_copy(update={"programs": programs}))

    slots = schedule.streams[0].slots

    def deferring(count: int, most: int) -> Callable[[Step], Step | None]:
        """As many deferred by each that defers any, and at most so many issued at a time."""

        def change(step: Step) -> Step | None:
            if isinstance(step.op, RefillOp):
                return step.model_copy(update={"op": step.op.model_copy(update={"most": most})}) if most else None
            changed = {"op": step.op.model_copy(update={"deferred": count})}
            return step.model_copy(update=changed) if step.op in held else step

        return change

    assert codes(deferring(slots + 1, 64)) == {"AMK302"}
    assert codes(deferring(slots, 0)) == {"AMK302"}
    assert not codes(deferring(slots - 1, 0)), "a slot goes round"
    assert not codes(deferring(slots, 1)), "the rest is owed through the next product"
