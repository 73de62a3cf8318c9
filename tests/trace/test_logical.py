"""The logical run: agrees with the greedy run on what happens, respects every wait, and names what let events go."""

from __future__ import annotations

import numpy as np
import pytest

from amk.adversary.recipe import TINY
from amk.adversary.system_builder import SystemBuilder
from amk.schedule_ir.schedule import Schedule
from amk.trace.from_schedule import Choice, of_schedule
from amk.trace.logical import NEVER, logical_run
from amk.trace.steps import Steps
from amk.validator.evidence.flat_system import expand
from amk.validator.order.greedy_run import greedy
from tests.cases import cases
from tests.validator.plans import SMALL, from_document, small_plan
from tests.validator.random_systems import random_systems


def test_random_systems_do_what_the_greedy_run_does() -> None:
    stuck = 0
    for system in random_systems(cases(150, 600), seed=5, max_agents=5, max_events=6):
        rng = np.random.default_rng(system.events)
        run = logical_run(system, rng.uniform(0, 3, system.events))
        done = np.zeros(system.events, bool)
        done[greedy(system).order] = True
        assert ((run.begin < NEVER) == done).all()
        assert (run.ready <= run.begin).all() and (run.begin <= run.end).all()
        for event in np.flatnonzero(done):
            for k in range(*system.wait_first[event : event + 2].tolist()):
                counter = system.wait_counter[k]
                mask = (system.signal_counter == counter) & (run.end[system.signal_event] <= run.begin[event])
                assert system.counter_init[counter] + system.signal_amount[mask].sum() >= system.wait_threshold[k]
        late = np.flatnonzero((run.begin < NEVER) & (run.begin > run.ready))
        assert (run.end[run.release[late]] == run.begin[late]).all()
        stuck += not done.all()
    assert stuck > cases(12, 50)


def test_a_wait_ends_with_the_signal_that_meets_it() -> None:
    build = SystemBuilder()
    first, second, third = (build.event(build.agent()) for _ in range(3))
    counter = build.counter()
    build.signal(first, counter)
    build.signal(second, counter)
    build.wait(third, counter, 2)
    run = logical_run(build.build(), np.array([1.0, 5.0, 1.0]))
    assert run.begin.tolist() == [0, 0, 5] and run.release.tolist() == [-1, -1, 1]


def test_every_step_of_the_shown_warps_is_a_span() -> None:
    schedule = small_plan()
    timeline = of_schedule(schedule, Choice(every_warp=True, whole=True))
    flat = expand(schedule, 0, 1)
    steps = Steps(schedule, flat.system, flat.traces)
    wanted = sum(steps.real(e) and not steps.step(e)[3] for e in range(flat.system.events))
    drawn = [span for span in timeline.spans if not span.detail.startswith("waited for") or span.kind != "wait"]
    assert len(drawn) == wanted
    assert len(timeline.tracks) == schedule.launch.workers * schedule.launch.warps
    assert not any(span.marked for span in timeline.spans)
    assert all(timeline.spans[a.source].end <= timeline.spans[a.target].end for a in timeline.arrows)


@pytest.mark.parametrize("preset", SMALL)
def test_arrows_come_from_other_workers(preset: str) -> None:
    timeline = of_schedule(small_plan(SMALL[preset]), Choice())
    assert timeline.arrows
    for arrow in timeline.arrows:
        source, target = (timeline.tracks[timeline.spans[i].track].group for i in (arrow.source, arrow.target))
        assert source != target and ">=" in arrow.name
    assert {track.group for track in timeline.tracks} == {f"worker {w}" for w in range(4)}


def test_few_layers_stand_for_many() -> None:
    many = small_plan(SMALL["naive"], TINY.model_copy(update={"layers": 9}))
    few, whole = of_schedule(many, Choice()), of_schedule(many, Choice(whole=True))
    assert len(few.spans) < len(whole.spans) / 2
    assert any("2 layers stand for all 9" in note for note in few.notes)


def test_a_deadlock_is_drawn_as_blocked_spans() -> None:
    schedule = _stuck()
    timeline = of_schedule(schedule, Choice())
    blocked = [span for span in timeline.spans if span.kind == "blocked"]
    assert blocked and all(span.marked and "never comes" in span.detail for span in blocked)
    assert any("gets stuck" in note for note in timeline.notes)


def _stuck() -> Schedule:
    document = small_plan(SMALL["naive"]).model_dump(mode="json")
    text = document["programs"][0]["body"]
    wait = next(s for s in _steps(text) if s["waits"])["waits"][0]
    wait["at_least"] = {"t": 4, "1": 5}
    return from_document(document)


def _steps(body: list[dict[str, object]]):  # type: ignore[no-untyped-def, type-arg]
    for node in body:
        yield from _steps(node["body"]) if "body" in node else [node]
