"""Schedules whose tagged steps overlap inside one worker: decided event by event where they are small enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from amk.adversary.edits import Edit, Json, Path, after, apply, find, waiting
from amk.adversary.recipe import TINY, base_schedule
from amk.judges.replay import replay
from amk.planner.decode import plan
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.evidence import flat_check
from amk.validator.evidence.flat_check import FlatCheck
from amk.validator.evidence.flat_system import expand
from amk.validator.memory.composition import compose
from amk.validator.order.greedy_run import greedy
from amk.validator.order.two_levels import NotComposable
from amk.validator.program.footprint import Footprints
from amk.validator.program.system import I64
from amk.validator.verify import verify
from tests.damage import rewritten
from tests.validator.plans import MODELS, SMALL, from_document, small_plan

BARRIERS: dict[str, Callable[[Json], Path]] = {
    "after the hint of qkv": lambda s: after(waiting(s, "qkv")),
    "after the hint of act": lambda s: after(waiting(s, "act")),
    "after the hint of best": lambda s: after(waiting(s, "best")),
    "before attention reads q": lambda s: after(find(s, "rope_append")),
}
HINTS = tuple(name for name in BARRIERS if "hint" in name)


def without(document: Json, names: tuple[str, ...]) -> Schedule:
    paths = sorted((BARRIERS[name](document) for name in names), reverse=True)
    return from_document(apply(document, [Edit("remove", path) for path in paths])[0])


@pytest.mark.parametrize(
    ("names", "composed", "safe"),
    [(HINTS[:2], True, True), ((HINTS[0], "before attention reads q"), False, False)],
)
def test_steps_that_overlap_are_decided(names: tuple[str, ...], composed: bool, safe: bool) -> None:
    """Without the barrier after a hint warps read flag words while warp 0 still waits: harmless by itself."""
    schedule = without(base_schedule("tagged"), names)
    assert compose(schedule).safe == composed
    check = FlatCheck(schedule)
    assert all(check.at(pos).safe == safe for pos in (0, 9, 30))
    verdict = verify(schedule)
    assert verdict.status == ("SAFE" if safe else "UNSAFE"), verdict.diagnostics
    if not safe:
        assert verdict.evidence is not None
        assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())


def test_overlapping_writes_of_one_buffer_are_decided_event_by_event() -> None:
    """Without any barrier a warp writes the next layer's words while others still write this layer's."""
    bare = rewritten(small_plan(SMALL["fast"]), lambda step: None if step.op.op == "barrier" else step)
    with pytest.raises(NotComposable):
        compose(bare)
    verdict = verify(bare)
    assert verdict.status == "UNSAFE" and verdict.evidence is not None
    assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())


@pytest.mark.turns(4)
@pytest.mark.parametrize(("events", "status"), [(flat_check.EVENTS, "SAFE"), (0, "UNKNOWN")])
def test_only_all_positions_are_safe(monkeypatch: pytest.MonkeyPatch, events: int, status: str) -> None:
    def refuse(schedule: Schedule, footprints: Footprints) -> NoReturn:
        raise NotComposable("made up")

    monkeypatch.setattr("amk.validator.verify.compose", refuse)
    monkeypatch.setattr(flat_check, "EVENTS", events)
    schedule = small_plan(SMALL["two-warps"], MODELS["qk-norm"])
    verdict = verify(schedule)
    assert verdict.status == status
    assert verdict.stats["positions checked"] == (schedule.kv.context if events else 0)
    assert [d.code for d in verdict.diagnostics] == ([] if events else ["AMK205"])


def test_a_context_without_room_for_two_tokens_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(schedule: Schedule, footprints: Footprints) -> NoReturn:
        raise NotComposable("made up")

    schedule = plan(TINY, load_target("h200"), settings=SMALL["naive"], workers=4, max_context=1)
    assert verify(schedule).status == "SAFE"
    monkeypatch.setattr("amk.validator.verify.compose", refuse)
    assert verify(schedule).status == "UNKNOWN"


@pytest.mark.turns(4)
@pytest.mark.parametrize("settings", SMALL)
def test_it_agrees_with_the_composed_check(settings: str) -> None:
    schedule = small_plan(SMALL[settings])
    check = FlatCheck(schedule)
    for pos in (0, 15):
        result = check.at(pos)
        assert result.safe and compose(schedule).safe


def test_a_warp_waits_for_the_words_that_it_reads_itself() -> None:
    """A warp of a step that reads flag words waits for its share behind the rest of the step; late writers of the
    others do not hold it."""
    schedule = small_plan(SMALL["fast"])
    flat = expand(schedule, 0, 1, "word")
    stage = next(i for i, item in enumerate(flat.traces[0].items) if item.step.op.op == "stage")
    swiglu = next(i for i, item in enumerate(flat.traces[0].items) if item.step.op.op == "swiglu")
    _, reading, found = flat.parts_of(0, flat.traces[0].event_of[stage]).tolist()
    words, *writing = flat.parts_of(3, flat.traces[0].event_of[swiglu][:1])

    def ran(events: list[int], stops: I64) -> list[bool]:
        run = greedy(flat.system, stops.tolist())
        return [bool(run.cut[flat.system.agent_of[e]] > flat.system.index_of[e]) for e in events]

    assert all(ran(reading, words)) and any(ran(found, words)) and not all(ran(found, words))
    assert all(ran(found, writing[0]))
