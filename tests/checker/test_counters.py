"""What the checker says of the amounts that warps of one warp class give."""

from __future__ import annotations

from typing import Any

import pytest

from amk.checker.counters import Counters
from amk.checker.programs import programs_of
from tests.validator.two_level import ROLES, schedule_of, step


def giving(role: str, add: Any) -> dict[str, Any]:
    signal = {"counter": "g0", "index": [0], "add": add, "order": "release"}
    return step({"op": "signal", "role": role}, signals=[signal])


@pytest.mark.parametrize(
    ("role", "add", "weight", "least"),
    [("all", {"1": 1, "agent": 2}, 9, 1), ("all", {"1": 5, "agent": -2}, 9, 1), ("all", 2, 6, 2), ("pair", 2, 4, None)],
    ids=["the first warp gives least", "the last warp gives least", "all give the same", "one warp gives nothing"],
)
def test_what_is_missing_at_least_is_what_the_warp_that_gives_least_gives(
    role: str, add: Any, weight: int, least: int | None
) -> None:
    """While any warp of a warp class is not over: it may be the one with the smallest amount."""
    schedule = schedule_of([[giving(role, add)], []])
    counters = Counters(schedule, programs_of(schedule))
    base = counters.base["g0"][0]
    worker, _, total, missing, loose = counters.warp_groups(base, relaxed_waits=False)
    assert set(worker) == {0} and set(total) == {weight} and loose == 0
    warp_classes = counters.warp_class[0]
    if least is not None:
        assert len(set(warp_classes)) == 1 and set(missing[:, warp_classes[0]]) == {least}
        return
    assert ROLES[role][1] == 2 and warp_classes[0] == warp_classes[1] != warp_classes[2]
    assert set(missing[:, warp_classes[0]]) == {2} and set(missing[:, warp_classes[2]]) == {0}


def test_an_expression_without_terms_is_zero() -> None:
    plain = step({"op": "signal", "role": "all"}, signals=[giving("all", 2)["signals"][0] | {"index": [{}]}])
    reference, empty = (schedule_of([[one], []]) for one in (giving("all", 2), plain))
    counters = Counters(empty, programs_of(empty))
    assert (counters.signals == Counters(reference, programs_of(reference)).signals).all()
