"""What paid in one run is tried in another, of another model and GPU: knobs and edits, as far as they apply there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate, Workshop, content_key, workshop_of
from amk.agent.gate.design import Design
from amk.agent.journal.events import Decided, Gated, LeaseReserved, Limits, Measured, Proposed
from amk.agent.journal.state import START
from amk.agent.propose.replay import Replay
from amk.agent.propose.transfer import Lesson, Lessons, Transfer, default_lessons, keep, learned, lessons_of, read
from amk.agent.run.runs import Plan
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.space import moved
from amk.report.diagnostic import AmkError
from amk.targets.target import load_target
from tests.agent.conftest import CONTEXT, MakeLoop, looped

UNAWAITED = {"do": "remove", "node": "decode/t/l/wait.qkv"}
"""Quicker on the simulator. That it is wrong is for the verdict to say, which here looks at fences alone."""
GONE = {"do": "remove", "node": "decode/t/l/no.such"}


def lesson(**fields: object) -> Lesson:
    return Lesson.model_validate({"model": "m", "gpu": "g", "simulated": True, "gain": 0.05} | fields)


@pytest.mark.turns(4)
def test_what_paid_is_learned_and_made_again_elsewhere(make_loop: MakeLoop, tmp_path: Path) -> None:
    edits = [json.dumps(UNAWAITED, sort_keys=True)]
    loop = make_loop(Replay(({"edits": edits}, {"run_ahead": True, "edits": edits})), evals=2)
    loop.run()
    table = learned(loop.state, loop.space)
    lessons = sorted((tuple(each.knobs), each.texts) for each in table.lessons)
    assert lessons == [((), tuple(edits)), (("run_ahead",), tuple(edits))], "both are changes of the start"
    gains = [each.gain for each in table.lessons]
    assert gains == sorted(gains, reverse=True) and gains[-1] > 0.001
    keep(tmp_path, table)
    assert lessons_of(tmp_path) == table.lessons
    elsewhere = Workshop(load_model("llama3.2-1b"), load_target("l4"), CONTEXT)
    found = looped(elsewhere, tmp_path / "other", Transfer(lessons_of(tmp_path)), SimulatedBackend("l4"), evals=9)
    found.run()
    first, *rest = found.state.trials
    assert first.proposed.operator == "all" and first.proposed.edits == tuple(edits)
    assert first.proposed.settings["run_ahead"] is True and first.gated is not None and first.gated.verdict == "passed"
    assert found.state.best_score < 0 and len({t.proposed.operator for t in (first, *rest)}) == len(rest) + 1
    assert list(Transfer(table.lessons).ask(found.context())) == []


def test_what_a_parent_was_behind_the_best_is_no_gain(make_loop: MakeLoop) -> None:
    """A slow plan is easily improved: of its children only what is faster than the best of the time is a lesson."""
    loop = make_loop(evals=1)
    slow, behind, ahead = {"warps": 2}, {"warps": 2, "wide_epilogue": 16}, {"warps": 2, "wide_epilogue": 32}
    for index, (changes, score) in enumerate([(slow, 0.05), (behind, 0.01), (ahead, -0.02)]):
        settings = loop.space.point(loop.space.parse(changes))
        place = {"index": index, "phase": "pilot", "attempt": 1, "seconds": 1.0, "device": "d"}
        times = {"log_ratios": (score,) * 6, "candidate_ms": (1.0,), "incumbent_ms": (1.0,), "against": START}
        for event in (
            Proposed(index=index, proposer="p", settings=settings, parent=0 if index else START),
            Gated(index=index, verdict="passed", key=str(index)), LeaseReserved.model_validate(place),
            Measured.model_validate(place | times),
            Decided(index=index, outcome="rejected", reason="r", log_gain=-score, score=score),
        ):  # fmt: skip
            loop.state.apply(event, float(index))
    (found,) = learned(loop.state, loop.space).lessons
    assert found.knobs == {"wide_epilogue": 32} and found.gain == pytest.approx(0.02)


def test_what_does_not_apply_is_left_out(make_loop: MakeLoop) -> None:
    """A place that is not there, a knob and a value that this space has not, and what the best has already."""
    loop = make_loop(evals=1)
    context = loop.context()
    own = loop.space.start.run_ahead
    for nothing in ({"edits": (GONE,)}, {"knobs": {"no_such": 1, "warps": 7}}, {"knobs": {"run_ahead": own}}):
        assert list(Transfer((lesson(**nothing),)).ask(context)) == []
    mixed = lesson(edits=(GONE, UNAWAITED), knobs={"warps": 7, "run_ahead": not own})
    (asked,) = Transfer((mixed,)).ask(context)
    assert asked.edits == (UNAWAITED,) and context.space.changes(
        context.space.parse(asked.settings), context.space.start
    ) == {"run_ahead": not own}


def test_the_worthiest_lesson_has_its_way(make_loop: MakeLoop) -> None:
    context = make_loop(evals=1).context()
    less, more = lesson(knobs={"wide_epilogue": 16}, gain=0.01), lesson(knobs={"wide_epilogue": 32}, gain=0.02)
    (asked,) = Transfer((more, less)).ask(context)
    assert asked.operator == "all" and asked.settings["wide_epilogue"] == 32


@pytest.mark.parametrize(
    "wrong",
    [
        {"edits": [{"do": "conjure"}]},
        {"gain": -0.1},
        {"gain": "much"},
        {"knobs": {"warps": [1]}},
        {"more": 1},
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    content = Lessons(lessons=(lesson(knobs={"warps": 8}),)).model_dump(mode="json")
    content["lessons"][0] |= wrong
    (path := tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(AmkError) as caught:
        read([path])
    assert caught.value.diagnostics[0].code in ("AMK005", "AMK002")


def test_the_default_plan_of_a_search_that_found_it_is_the_first_lesson() -> None:
    asked = Plan("llama3.2-1b", "h200", 8192, "fast", 0, "portfolio", None, Limits(), dtype="int8")
    (lesson,) = default_lessons(asked).lessons
    model, target, wanted = load_model("llama3.2-1b"), load_target("h200"), formats("int8")
    workshop = Workshop(model, target, 8192, wanted)
    found = workshop.make(Design(moved(workshop.space("fast").start, lesson.knobs), lesson.texts))
    assert isinstance(found, Candidate) and not lesson.simulated
    default = plan(model, target, formats=wanted, max_context=8192)
    assert content_key(found.schedule) == content_key(default)
    assert not default_lessons(replace(asked, dtype="bf16")).lessons
    assert not default_lessons(replace(asked, batch=2)).lessons
    assert not default_lessons(replace(asked, lm_head_dtype="bf16")).lessons


def test_a_search_of_a_layout_with_another_head_plans_that_head() -> None:
    asked = Plan(
        "llama3-8b", "h200", 8192, "fast", 0, "portfolio", None, Limits(), dtype="int4-g128-zp", lm_head_dtype="bf16"
    )
    workshop = workshop_of(asked)
    found = workshop.make(workshop.space("fast").start)
    assert isinstance(found, Candidate)
    stream = found.schedule.streams[0]
    assert (stream.chunk("down", 0).format, stream.chunk("lm_head", 0).format) == ("int4-g128-zp", "bf16")
