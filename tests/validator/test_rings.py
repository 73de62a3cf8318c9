"""The stream lemma against exhaustive exploration of small rings with every copy as an event."""

import pytest

from amk.validator.explore import explore, explore_memory
from amk.validator.flat import judge
from amk.validator.rings import check_rings, ring_system
from tests.validator.plans import small_plan


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


def test_static_conditions_hold_for_plans_and_fail_one_by_one() -> None:
    schedule = small_plan()
    assert not list(check_rings(schedule))
    stream = schedule.streams[0]

    def codes(**change: object) -> set[str]:
        streams = (stream.model_copy(update=change),)
        return {d.code for d in check_rings(schedule.model_copy(update={"streams": streams}))}

    assert codes(slots=stream.slots + 1) == {"AMK103"}
    assert codes(refill_fence=False) == {"AMK507"}
    assert "AMK106" in codes(role="w0")
    assert "AMK302" in codes(source="state")
