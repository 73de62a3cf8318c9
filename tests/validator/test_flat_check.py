"""Schedules whose tagged steps overlap inside one worker: decided event by event where they are small enough."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from amk.adversary.edits import Edit, Json, Path, after, apply, find, waiting
from amk.adversary.recipe import TINY, base_schedule
from amk.planner.decode import plan
from amk.schedule_ir.schedule import Schedule
from amk.schedule_ir.target import load_target
from amk.validator.compose import compose
from amk.validator.expand import expand
from amk.validator.flat_check import FlatCheck
from amk.validator.liveness import greedy
from amk.validator.local_order import NotComposable
from amk.validator.replay import replay
from amk.validator.verify import verify
from tests.validator.plans import SMALL, from_document, small_plan

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
    ("names", "status"), [(HINTS[:1], "SAFE"), (HINTS, "SAFE"), ((HINTS[0], "before attention reads q"), "UNSAFE")]
)
def test_overlapping_tagged_steps_are_decided(names: tuple[str, ...], status: str) -> None:
    """Without the barrier after a hint warps read tagged words while warp 0 still waits: harmless by itself."""
    schedule = without(base_schedule("tagged"), names)
    with pytest.raises(NotComposable):
        compose(schedule)
    verdict = verify(schedule)
    assert verdict.status == status, verdict.diagnostics
    if status == "UNSAFE":
        assert verdict.evidence is not None
        assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())
    else:
        assert verdict.stats["positions checked"] == schedule.kv.context - 1


@pytest.mark.parametrize(("names", "code"), [(HINTS[:1], "AMK205"), ((HINTS[0], "before attention reads q"), "AMK302")])
def test_too_many_positions_are_never_safe(names: tuple[str, ...], code: str) -> None:
    model = TINY.model_copy(update={"max_context": 2048})
    large = plan(model, load_target("h200"), settings=SMALL["fast"], workers=4)
    verdict = verify(without(json.loads(large.model_dump_json()), names))
    assert verdict.diagnostics[0].code == code
    assert verdict.status == ("UNKNOWN" if code == "AMK205" else "UNSAFE")


@pytest.mark.parametrize("settings", SMALL)
def test_it_agrees_with_the_composed_check(settings: str) -> None:
    schedule = small_plan(SMALL[settings])
    check = FlatCheck(schedule)
    for pos in (0, 15):
        result = check.at(pos)
        assert result.safe and compose(schedule).safe


def test_a_warp_waits_for_the_words_that_it_reads_itself() -> None:
    """Each warp of a step that reads tagged words waits for its own share; late writers of others do not hold it."""
    schedule = small_plan(SMALL["fast"])
    flat = expand(schedule, 0, 1, "word")
    stage = next(i for i, item in enumerate(flat.traces[0].items) if item.step.op.op == "stage")
    swiglu = next(i for i, item in enumerate(flat.traces[0].items) if item.step.op.op == "swiglu")
    readers = [int(flat.event_id[0][0, e]) for e in flat.traces[0].event_of[stage]]
    writers = [int(e) for w in range(4) for e in flat.event_id[0][w, flat.traces[0].event_of[swiglu]]]
    held = [w for w in writers if flat.system.agent_of[w] // flat.traces[0].warps == 3]
    run = greedy(flat.system, held)
    started = [bool(run.cut[flat.system.agent_of[r]] > flat.system.index_of[r]) for r in readers]
    assert any(started) and not all(started)
