"""Edits of schedules: they compose, are found again, survive files, name the same place whatever else is edited, and
break what they break in the open."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.cli import main
from amk.planner.replan import replanned
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import save_schedule
from amk.schedule_ir.edits import kinds
from amk.schedule_ir.edits.apply import apply, edit_text
from amk.schedule_ir.edits.difference import PROBLEM, difference
from amk.schedule_ir.edits.draw import DRAWS, Scene, draw
from amk.schedule_ir.edits.file import edits_json, parse_edits
from amk.schedule_ir.edits.shrink import shrunk
from amk.schedule_ir.edits.thresholds import full_joins, totals
from amk.schedule_ir.edits.tree import Leaf, body, tree, walk
from amk.schedule_ir.memory import Counter
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Schedule, Step
from amk.validator.verify import verify

BASES = sorted(SMALL_BASES)


@cache
def plan_of(name: str) -> Schedule:
    return Schedule.model_validate_json(json.dumps(base(name)))


def edited(schedule: Schedule, rng: np.random.Generator, count: int, repair: bool = True) -> list[kinds.Edit]:
    """Random edits that apply one after the other, all named by the schedule they begin from."""
    edits: list[kinds.Edit] = []
    for _ in range(4 * count):
        candidate = [*edits, draw(schedule, rng)]
        try:
            apply(schedule, candidate, repair=repair)
        except AmkError:
            continue
        edits = candidate
        if len(edits) == count:
            break
    return edits


def refused(schedule: Schedule, *edits: kinds.Edit) -> str:
    with pytest.raises(AmkError) as error:
        apply(schedule, edits)
    return error.value.diagnostics[0].code


def step(schedule: Schedule, name: str) -> Step:
    found = next(n for p in schedule.programs for _, n in walk(tree(p)) if n.name == name)
    assert isinstance(found, Leaf)
    return found.step


def names(schedule: Schedule) -> list[str]:
    return [n.name for p in schedule.programs for _, n in walk(tree(p))]


@pytest.mark.parametrize("name", BASES)
def test_names_are_unique_and_the_tree_is_the_program(name: str) -> None:
    schedule = plan_of(name)
    found = names(schedule)
    assert len(set(found)) == len(found)
    assert all(body(tree(p)) == p.body for p in schedule.programs)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(BASES), st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans())
def test_difference_is_what_was_edited_and_its_reverse_the_inverse(
    name: str, seed: int, count: int, repair: bool
) -> None:
    before = plan_of(name)
    after = apply(before, edited(before, np.random.default_rng(seed), count, repair), repair=repair).schedule
    there, back = difference(before, after), difference(after, before)
    assert apply(before, there, repair=False).schedule == after
    assert apply(after, back, repair=False).schedule == before
    assert (not there) == (before == after)


@pytest.mark.parametrize("name", ["fenced", "tagged"])
def test_difference_of_unlike_plans(name: str) -> None:
    """Two plans of one problem that share little."""
    a = plan_of(name)
    b = apply(a, [kinds.Knobs(start="naive", settings={"warps": 4})], replan=replanned).schedule
    assert a != b
    assert apply(a, difference(a, b), repair=False).schedule == b
    assert apply(b, difference(b, a), repair=False).schedule == a


def test_schedules_of_two_models_have_no_difference() -> None:
    with pytest.raises(AmkError, match="model"):
        difference(plan_of("fenced"), plan_of("naive, head norms"))


def test_whatever_two_plans_differ_in_is_an_edit_or_refused() -> None:
    """Also whether texts come and go, the rows of a step, and layers of another kind, which files leave out where there
    are none."""
    edited = {"name", "plan", "launch", "kv", "roles", "tables", "buffers", "counters", "streams", "programs"}
    assert edited | set(PROBLEM) == set(Schedule.model_fields) and not edited & set(PROBLEM)
    for name, other in (("batch, parts of down", "live batch"), ("drawing", "rows"), ("rows", "sixteen rows")):
        with pytest.raises(AmkError, match="AMK018"):
            difference(plan_of(name), plan_of(other))
    a, b = plan_of("tagged"), plan_of("layers of two kinds")
    for before, after in ((a, b), (b, a)):
        assert apply(before, difference(before, after), repair=False).schedule == after


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(BASES), st.integers(0, 2**32 - 1))
def test_edits_survive_their_file(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = plan_of(name)
    found = kinds.EditList(edits=tuple(draw(schedule, rng) for _ in range(8)), repair=bool(seed % 2))
    again = parse_edits(edits_json(found), "edits.json")
    assert again == found
    assert edits_json(again) == edits_json(found)


def test_a_bare_list_is_no_file_of_edits() -> None:
    with pytest.raises(AmkError) as refusal:
        parse_edits(b"[]", "edits.json")
    (found,) = refusal.value.diagnostics
    assert (found.code, found.message) == ("AMK005", "a file of edits is a JSON object with the list `edits`")


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(BASES), st.integers(0, 2**32 - 1))
def test_a_name_means_the_same_step_whatever_is_edited_before(name: str, seed: int) -> None:
    """A mark that is set last is found on the step that had the name in the parent."""
    rng = np.random.default_rng(seed)
    schedule = plan_of(name)
    others = edited(schedule, rng, 3)
    leaves = [n for p in schedule.programs for _, n in walk(tree(p)) if isinstance(n, Leaf)]
    aim = leaves[int(rng.integers(len(leaves)))]
    mark = {"counter": schedule.counters[0].name, "index": (0,) * len(schedule.counters[0].shape), "add": 0}
    edit = kinds.AddSignal.model_validate({"node": aim.name, "signal": mark})
    try:
        last = apply(schedule, [*others, edit], repair=False).schedule
    except AmkError:  # the step is gone
        with pytest.raises(AmkError, match="no step"):
            apply(schedule, [*others, edit], repair=False)
        return
    marked = [n.step.op.op for p in last.programs for _, n in walk(tree(p)) if isinstance(n, Leaf) and _marked(n, mark)]
    assert aim.step.op.op in marked, "the mark is on a step of the kind that was named"
    first = apply(schedule, [edit, *others], repair=False).schedule
    assert first == last or any(isinstance(e, kinds.SplitSignals | kinds.SplitLoop | kinds.Fuse) for e in others)


def _marked(leaf: Leaf, mark: dict[str, object]) -> bool:
    return any(s.add == 0 and s.counter == mark["counter"] for s in leaf.step.signals)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", BASES)
def test_a_step_keeps_its_name_when_others_are_removed(name: str) -> None:
    """Named anew after one step was removed, at most its equals in the body and the barriers behind it are called
    otherwise."""
    schedule = plan_of(name)
    for gone in names(schedule)[::5]:
        if step_or_none(schedule, gone) is None:
            continue
        program = apply(schedule, [kinds.Remove(node=gone)], repair=False).schedule
        stem = gone.partition("#")[0]
        kept = [n for n in names(schedule) if n != gone and not n.startswith(stem) and "/barrier" not in n]
        assert set(kept) <= set(names(program)), gone


def step_or_none(schedule: Schedule, name: str) -> Step | None:
    found = next(n for p in schedule.programs for _, n in walk(tree(p)) if n.name == name)
    return found.step if isinstance(found, Leaf) else None


@pytest.mark.parametrize("kind", DRAWS, ids=lambda d: d.__name__.strip("_"))
def test_every_kind_of_draw_changes_some_plan(kind: object) -> None:
    rng = np.random.default_rng(5)
    for name, _ in itertools.product(BASES, range(6)):
        schedule = plan_of(name)
        try:
            edit = kind(Scene(schedule, rng))  # type: ignore[operator]
            if apply(schedule, [edit]).schedule != schedule:
                return
        except (LookupError, AmkError):
            continue
    pytest.fail("no draw applied")


def test_another_producer_count_renumbers_the_waits() -> None:
    """Eight signals a worker in place of one: every wait for all of them waits for eight times as many, and the plan is
    as safe as before; without the repair it is not."""
    schedule = plan_of("fenced")
    sums = totals(schedule)
    giver = next(
        n for p in schedule.programs for _, n in walk(tree(p))
        if isinstance(n, Leaf) and n.step.op.op == "signal" and n.step.op.role == "w0"
    )  # fmt: skip
    counter = giver.step.signals[0].counter
    edit = kinds.SetOp(node=giver.name, field="role", value="all")
    result = apply(schedule, [edit])
    agents = next(r.count for r in schedule.roles if r.name == "all")
    assert (totals(result.schedule)[counter] == agents * sums[counter]).all()
    assert len(full_joins(result.schedule)) == len(full_joins(schedule))
    assert any("signals a token" in line for line in result.repaired)
    assert verify(result.schedule).status == "SAFE"
    assert verify(apply(schedule, [edit], repair=False).schedule).status != "SAFE"


def test_loops_of_too_many_rounds_are_not_counted() -> None:
    """No edit makes the count of signals take for ever, and none is guessed."""
    schedule = plan_of("fenced")
    loop = next(n for n in names(schedule) if n.endswith("/l"))
    result = apply(schedule, [kinds.SetLoop(node=loop, count=100_000)])
    assert totals(result.schedule) == {}
    assert full_joins(result.schedule) == set()
    assert result.repaired == ()


def test_a_hand_off_changes_with_its_orders() -> None:
    schedule = plan_of("fenced")
    counter = schedule.counters[0].name
    result = apply(schedule, [kinds.SetEntry(of="counter", name=counter, field="handoff", value="hint")])
    steps = [n.step for p in result.schedule.programs for _, n in walk(tree(p)) if isinstance(n, Leaf)]
    orders = {e.order for s in steps for e in (*s.waits, *s.signals) if e.counter == counter}
    assert orders == {"relaxed"}
    assert result.repaired
    assert verify(result.schedule).status == "UNSAFE"


def test_a_longer_ring_gets_its_bytes() -> None:
    schedule = plan_of("fenced")
    stream = schedule.streams[0]
    result = apply(schedule, [kinds.SetEntry(of="stream", name=stream.name, field="slots", value=stream.slots + 1)])
    ring = next(b for b in result.schedule.buffers if b.name == stream.ring)
    assert stream.slots + 1 in ring.shape
    shared = [b for b in result.schedule.buffers if b.space == "shared" and b.offset is not None]
    assert max((b.offset or 0) + b.bytes for b in shared) <= result.schedule.launch.shared_bytes


def test_a_step_takes_its_barrier_along() -> None:
    schedule = plan_of("tagged")
    barrier = next(n for p in schedule.programs for _, n in walk(tree(p)) if _is_barrier(n))
    here = next(
        (p.nodes[i], p.nodes[i + 2:]) for program in schedule.programs for p, n in walk(tree(program))
        for i in range(1, len(p.nodes) - 3)
        if n is p.nodes[i] and all(_same_barrier(p.nodes[j], barrier) for j in (i - 1, i + 1))
        and not _is_barrier(p.nodes[i]) and not any(_is_barrier(m) for m in p.nodes[-1:])
    )  # fmt: skip
    moved, later = here
    result = apply(schedule, [kinds.Move(node=moved.name, to=kinds.Place(at="after", of=later[-1].name))])
    assert any("goes along" in line for line in result.repaired)


def _is_barrier(node: object) -> bool:
    return isinstance(node, Leaf) and isinstance(node.step.op, BarrierOp)


def _same_barrier(node: object, other: object) -> bool:
    return isinstance(node, Leaf) and isinstance(other, Leaf) and node.step == other.step


def test_what_does_not_apply_is_refused_by_name() -> None:
    schedule = plan_of("fenced")
    leaf = next(n for n in names(schedule) if n.endswith("gemv.qkv"))
    assert refused(schedule, kinds.Remove(node="decode/nothing")) == "AMK018"
    assert refused(schedule, kinds.Move(node=leaf, to=kinds.Place(at="after", of=leaf))) == "AMK018"
    assert refused(schedule, kinds.Remove(node=leaf), kinds.Remove(node=leaf)) == "AMK018"
    assert refused(schedule, kinds.SetOp(node=leaf, field="colour", value=1)) == "AMK018"
    assert refused(schedule, kinds.SetOp(node=leaf, field="x", value="nowhere")) == "AMK009"
    assert refused(schedule, kinds.SetOp(node=leaf, field="deferred", value=-1)) == "AMK005"
    assert refused(schedule, kinds.Knobs(settings={"warps": 4})) == "AMK018"
    loop = next(n for n in names(schedule) if n.endswith("/l"))
    assert refused(schedule, kinds.Move(node=loop, to=kinds.Place(at="last", of=loop))) == "AMK018"


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([1] * 52 + [2] * 6, "[52 x 1, 6 x 2]"),
        ([*range(0, 84, 2), 84, 85, 86, 87, 88], "[0 to 84 by 2, 85 to 88 by 1]"),
        ([0, 2, 4, 5, 5, 5, 5, 9], "[0, 2, 4, 4 x 5, 9]"),
        ([3], "[3]"),
        ([], "[]"),
    ],
)
def test_a_long_column_is_said_in_few_words(column: list[int], words: str) -> None:
    assert edit_text(kinds.SetTable(name="a.first", column=tuple(column))) == f"set table: name a.first, column {words}"


def test_settings_of_the_planner_are_edits_like_others() -> None:
    schedule = plan_of("fenced")
    knob = kinds.Knobs(start="fast", settings={"warps": 4})
    planned = apply(schedule, [knob], replan=replanned).schedule
    assert max(r.count for r in planned.roles) == 4
    assert (planned.model, planned.launch.workers, planned.kv.context) == (
        schedule.model, schedule.launch.workers, schedule.kv.context,
    )  # fmt: skip
    first = next(n for n in names(planned) if "barrier" in n)
    both = apply(schedule, [knob, kinds.Remove(node=first)], replan=replanned).schedule
    assert both == apply(planned, [kinds.Remove(node=first)]).schedule
    with pytest.raises(AmkError, match="knob"):
        apply(schedule, [kinds.Knobs(settings={"colour": 4})], replan=replanned)
    with pytest.raises(AmkError, match="first edit"):
        apply(schedule, [kinds.Remove(node=first), knob], replan=replanned)


def test_shrinking_keeps_what_matters() -> None:
    """Of four edits, one of which makes the plan unsafe, that one is left."""
    schedule = plan_of("fenced")
    leaf = next(n for p in schedule.programs for _, n in walk(tree(p)) if isinstance(n, Leaf) and n.step.waits)
    harmless: list[kinds.Edit] = [
        kinds.SetHeader(of="schedule", field="name", value="another"),
        kinds.AddWait(node=leaf.name, wait=leaf.step.waits[0]),
        kinds.AddEntry(entry=Counter(name="unused")),
    ]
    assert verify(apply(schedule, harmless).schedule).status == "SAFE"
    bad = kinds.AddWait(node=leaf.name, wait=leaf.step.waits[0].model_copy(update={"at_least": {"t": 999, "1": 999}}))
    found = shrunk(
        [*harmless[:2], bad, *harmless[2:]], lambda e: verify(apply(schedule, e).schedule).status == "UNSAFE"
    )
    assert found == (bad,)
    with pytest.raises(ValueError, match="itself"):
        shrunk(harmless, lambda e: False)


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 19), min_size=1, max_size=5))
def test_shrinking_finds_exactly_the_needed_part(indices: set[int]) -> None:
    edits = [kinds.Remove(node=str(i)) for i in range(20)]

    def holds(part: Sequence[kinds.Edit]) -> bool:
        return {str(i) for i in indices} <= {e.node for e in part if isinstance(e, kinds.Remove)}

    assert shrunk(edits, holds) == tuple(e for i, e in enumerate(edits) if i in indices)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after, edits, out = (tmp_path / n for n in ("a.json", "b.json", "e.json", "o.json"))
    schedule = plan_of("tagged")
    first = next(n for n in names(schedule) if "barrier" in n)
    save_schedule(schedule, before)
    save_schedule(apply(schedule, [kinds.Remove(node=first)]).schedule, after)
    assert main(["diff", str(before), str(after), "-o", str(edits)]) == 0
    assert f"remove: node {first}" in capsys.readouterr().out
    assert main(["edit", str(before), str(edits), "-o", str(out)]) == 0
    assert out.read_bytes() == after.read_bytes()
    assert main(["edit", str(before), "--names"]) == 0
    assert first in capsys.readouterr().out.split("\n")
    assert main(["edit", str(after), str(edits), "-o", str(out)]) == 2
    edits.write_text('{"format": "amk.edits/1", "edits": [{"do": "fly"}]}')
    assert main(["edit", str(before), str(edits)]) == 2
    assert "AMK" in capsys.readouterr().err
