"""The space: complete, closed, live, and canonical by the lowered kernel."""

import tracemalloc
from dataclasses import fields, replace

import numpy as np
import pytest

from amk.agent.gate.candidate import Candidate, Workshop
from amk.models.model import load_model
from amk.planner.formats import formats
from amk.planner.settings import FAST, NAIVE, Settings
from amk.planner.space import FIXED, OF_BATCHES, OutsideSpaceError, Space, knobs_of
from amk.targets.target import load_target

SPACE = Space.around(NAIVE)


def test_every_field_of_settings_is_a_knob_or_fixed() -> None:
    one, several = ({k.name for k in knobs_of(replace(FAST, batch=batch))} for batch in (1, 2))
    assert several | set(FIXED) == {f.name for f in fields(Settings)}
    assert several - one == set(OF_BATCHES)


def test_a_search_from_the_fast_plan_begins_with_the_kernel_that_users_get() -> None:
    workshop = Workshop(load_model("llama3.2-1b"), load_target("h200"), 8192)
    space = workshop.space("fast")
    assert workshop.key(space.start) == workshop.key(FAST)
    assert space.changes(space.start, FAST) and space.parse(space.point(space.start)) == space.start


def test_points_survive_parsing() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        settings = SPACE.random(rng)
        assert SPACE.parse(SPACE.point(settings)) == settings


def test_a_point_takes_half_a_kilobyte() -> None:
    """A search remembers how thousands of plans near its best were settled."""
    tracemalloc.start()
    try:
        points = [far for near in list(SPACE.neighbours(SPACE.start))[:8] for far in SPACE.neighbours(near)]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 512 * len(points)


OUTSIDE: list[dict[str, object]] = [
    {"warps": 7}, {"warps": True}, {"warps": "8"}, {"run_ahead": 1}, {"plan": "naive"}, {"__class__": 1},
    {"handoff": "none"}, {"warps": [8]}, {"slots": 10**40},
]  # fmt: skip


@pytest.mark.parametrize("changes", OUTSIDE)
def test_values_outside_the_table_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(OutsideSpaceError):
        SPACE.parse(changes)


def test_neighbours_differ_in_one_knob_and_are_all_there() -> None:
    near = list(SPACE.neighbours(SPACE.start))
    assert len(near) == len(set(near)) == sum(len(k.values) - 1 for k in SPACE.knobs)
    assert all(len(SPACE.changes(n, SPACE.start)) == 1 for n in near)


def test_encoding_separates_points() -> None:
    rng = np.random.default_rng(2)
    points = {SPACE.random(rng) for _ in range(60)}
    assert len({tuple(SPACE.encode(p)) for p in points}) == len(points)


@pytest.mark.turns(4)
def test_every_knob_changes_the_lowered_kernel(workshop: Workshop) -> None:
    """On a model whose workers all own rows of every matrix; hints of the small one have no slack. Tagged words leave
    no choice of what crosses SMs, so that knob is tried with fences, and only codes have scales, to stand apart or to
    share. Pacing needs a QKV of several rings of chunks, and only what is paced can be late.
    """
    large = Workshop(load_model("llama3.2-1b"), workshop.target, workshop.context)
    longer = Workshop(load_model("llama3-8b"), large.target, large.context, formats("int8"))
    coded = Workshop(large.model, large.target, large.context, formats("int8"))
    fast = replace(FAST, plan="search")
    for knob in knobs_of(fast):
        base = {"handoff_dtype": replace(fast, handoff="fenced"), "refill_late": replace(fast, paced=True)}.get(
            knob.name, fast
        )
        makers = {"scales_apart": coded, "scale_blocks": coded, "paced": longer, "refill_late": longer}
        maker = makers.get(knob.name, large)
        candidates = [maker.make(replace(base, **{knob.name: value})) for value in knob.values]
        assert len({m.key for m in candidates if isinstance(m, Candidate)}) > 1, f"{knob.name} changes nothing"


def test_settings_of_one_kernel_have_one_key(workshop: Workshop) -> None:
    fenced = replace(FAST, handoff="fenced")
    a, b = workshop.make(replace(fenced, slots=None)), workshop.make(replace(fenced, slots=32, plan="naive"))
    assert isinstance(a, Candidate) and isinstance(b, Candidate) and a.key == b.key
