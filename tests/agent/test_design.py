"""Candidates that are edits of a plan: read, made, gated, journaled, resumed, bred."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.adversary.neighbourhood.bases import SMALLEST, TAGGED
from amk.agent.decide.keep import MIN_GAIN
from amk.agent.gate.candidate import Candidate, Impossible, Workshop
from amk.agent.gate.certify import Judgement
from amk.agent.gate.design import MAX_EDITS, Design, difference, edit_of, in_words, read_edits, same_problem
from amk.agent.journal.events import EVENT, Proposed
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import START
from amk.agent.propose import structure
from amk.agent.propose.archive import FAMILIES, Archive, Elite, merged
from amk.agent.propose.arms import Arms
from amk.agent.propose.base import Context
from amk.agent.propose.edit_history import refused
from amk.agent.propose.replay import Replay
from amk.agent.propose.structure import Structure
from amk.planner.decode import plan
from amk.planner.formats import BF16, formats
from amk.planner.settings import FAST, PHASED
from amk.planner.space import Space
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.edits.difference import difference as schedule_difference
from amk.schedule_ir.edits.directed import KINDS, Hot, directed
from amk.schedule_ir.edits.kinds import AddEntry, Edit, RemoveEntry, SetEntry, SetHeader, SetTable
from amk.simulator.predict import steps_ms
from amk.targets.target import load_target
from amk.validator.verify import verify
from tests.agent.conftest import MakeLoop

HELD = {"do": "set_op", "field": "deferred", "node": "decode/t/l/gemv.gate_up", "value": 1}
GONE = {"do": "remove", "node": "decode/t/l/no.such"}
UNSAFE = {"do": "set", "of": "stream", "name": "weights", "field": "refill_fence", "value": False}
"""What the certifier of the tests refuses."""


@dataclass
class Scripted:
    """Proposes designs one by one."""

    edits: Sequence[Sequence[Any]]
    name: str = "scripted"

    def ask(self, context: Context) -> list[Suggestion]:
        done = len(context.trials_of(self.name))
        start = dict(context.space.point(context.space.start))
        return [Suggestion(self.name, start, "as scripted", edits=tuple(e)) for e in self.edits[done : done + 1]]


def candidate_of(workshop: Workshop, *edits: dict[str, Any]) -> Candidate | Impossible:
    return workshop.make(Design(FAST, read_edits(edits)))


def test_edits_are_read_once_and_written_the_same() -> None:
    (text,) = read_edits([HELD])
    assert json.loads(text) == HELD and read_edits([json.loads(text)]) == (text,)
    assert in_words([text]) == ["set op: node decode/t/l/gemv.gate_up, field deferred, value 1"]


@pytest.mark.parametrize(
    "wrong",
    [
        "move", None, {"do": "teleport"}, {"do": "remove"}, {**HELD, "more": 1}, {**HELD, "value": float("nan")},
        {"do": "knobs", "settings": {"warps": 4}}, {**HELD, "node": "x" * 70_000}, {**HELD, "value": {1, 2}},
    ],
)  # fmt: skip
def test_what_is_no_edit_is_refused_in_words(wrong: Any) -> None:
    with pytest.raises(ValueError, match="edit 0"):
        read_edits([wrong])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"edit": "move"}, "it has no field 'do', which is one of"),
        ({"do": "teleport"}, "'do' cannot be 'teleport', which is one of"),
    ],
)
def test_an_unknown_kind_is_told_the_kinds(wrong: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        read_edits([wrong])
    assert "one of add, add_signal, " in str(caught.value) and "knobs" not in str(caught.value)
    assert not any(word in str(caught.value) for word in ("tag", "discriminator"))


def test_a_list_has_an_end() -> None:
    with pytest.raises(ValueError, match="64 edits"):
        read_edits([HELD] * 65)


def test_an_edited_candidate_is_the_plan_with_its_edits(workshop: Workshop) -> None:
    plan, edited = workshop.make(FAST), candidate_of(workshop, HELD)
    assert isinstance(plan, Candidate) and isinstance(edited, Candidate)
    assert edited.schedule == apply(plan.schedule, edited.design.parsed).schedule != plan.schedule
    assert len({plan.key, edited.key, edited.kernel_key()}) == 3
    assert workshop.make(Design(FAST)) == plan


def test_edits_that_come_to_nothing_are_the_plan_itself(workshop: Workshop) -> None:
    plan = workshop.make(FAST)
    assert isinstance(plan, Candidate)
    (stream,) = plan.schedule.streams
    same = candidate_of(
        workshop, {"do": "set", "of": "stream", "name": stream.name, "field": "slots", "value": stream.slots}
    )
    assert isinstance(same, Candidate) and same.key == plan.key


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (GONE, "no.such"),
        ({"do": "set_header", "of": "kv", "field": "context", "value": 1024}, "kv.context"),
        ({"do": "set_header", "of": "launch", "field": "max_tokens", "value": 1}, "launch.max_tokens"),
    ],
)
def test_edits_do_not_change_the_problem(workshop: Workshop, edit: dict[str, Any], what: str) -> None:
    found = candidate_of(workshop, edit)
    assert isinstance(found, Impossible) and found.codes[0].startswith("AMK0") and what in found.detail


def test_edits_do_not_quantise_later_layers() -> None:
    """A SAFE plan whose layers from the second on are in int8, as few edits: its programs are declared anew."""
    target, narrow = load_target("h200"), dict(formats("int8", "bf16"))
    plans = [
        plan(SMALLEST, target, settings=TAGGED, formats=wanted, workers=2, max_context=12)
        for wanted in (((2, BF16),), ((1, BF16), (1, narrow)))
    ]
    header = AddEntry | RemoveEntry | SetEntry | SetHeader | SetTable
    edits: list[Edit] = [edit for edit in schedule_difference(*plans) if isinstance(edit, header)]
    for program in plans[1].programs:
        edits += [RemoveEntry(of="program", name=program.name), AddEntry(entry=program, after=None)]
    schedule = apply(plans[0], edits, repair=False).schedule
    assert len(edits) <= MAX_EDITS and schedule == plans[1] and verify(schedule).safe
    with pytest.raises(AmkError, match="format of the weights"):
        same_problem(schedule, plans[0])


def test_a_run_of_edits_is_judged_journaled_and_resumed(make_loop: MakeLoop, tmp_path: Path) -> None:
    lists = [[HELD], [UNSAFE], [GONE], ["nonsense"], [HELD]]
    loop = make_loop(Scripted(lists), evals=5)
    loop.run()
    verdicts = [t.gated.verdict if t.gated else None for t in loop.state.trials]
    assert verdicts == ["passed", "unsafe", "impossible", "impossible", "duplicate"]
    first, unsafe, _, nonsense, _ = loop.state.trials
    assert first.evaluated and first.edited and first.proposed.edit == {"edits": in_words(first.proposed.edits)}
    assert unsafe.gated is not None and unsafe.gated.codes == ("AMK507",)
    assert nonsense.gated is not None and nonsense.gated.codes == ("outside_space",)
    loop.journal.close()
    again = make_loop(Scripted(lists), evals=5)
    assert again.design_of(0) == loop.design_of(0) == Design(Space.around(PHASED).start, read_edits([HELD]))
    assert [t.proposed for t in again.state.trials] == [t.proposed for t in loop.state.trials]


def test_an_edited_schedule_that_is_a_known_kernel_is_a_duplicate(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate lowers it once it is SAFE: here all lower to one kernel, which the first of them has."""
    monkeypatch.setattr(Candidate, "kernel_key", lambda self: "one kernel")
    loop = make_loop(Scripted([[HELD], [{**HELD, "value": 2}]]), evals=3)
    loop.run()
    assert [t.gated.verdict for t in loop.state.trials if t.gated] == ["passed", "duplicate"]
    assert loop.state.evals == 1 and "proposal 0" in str(loop.state.trials[1].gated)


def test_journals_from_before_edits_are_read() -> None:
    old = {"kind": "proposed", "index": 0, "proposer": "local", "settings": {"warps": 8}, "key": "k"}
    event = EVENT.validate_python(old)
    assert isinstance(event, Proposed) and event.edits == () and event.operator == ""


def test_a_child_is_told_by_what_came_and_what_went() -> None:
    (one,), (other,) = read_edits([HELD]), read_edits([UNSAFE])
    found = difference(Design(FAST, (one,)), Design(FAST, (other,)), {"warps": 4})
    assert found == {"warps": 4, "edits": in_words([one]), "without": in_words([other])}


def test_merging_keeps_the_first_of_two_edits_of_one_place() -> None:
    more = {**HELD, "value": 2}
    drop = {"do": "remove", "node": HELD["node"]}
    one, other = read_edits([HELD]), read_edits([more, UNSAFE, drop])
    assert merged(one, other) == (*one, other[1])
    assert merged(other, one) == other


def test_every_kind_of_edit_has_a_family() -> None:
    kinds = {cls.model_fields["do"].default for cls in Edit.__args__[0].__args__}  # type: ignore[attr-defined]
    assert kinds - {"knobs"} == set(FAMILIES)


def test_directed_draws_apply_also_to_an_edited_schedule(workshop: Workshop) -> None:
    """Drawn one after the other, each from what the earlier made of the plan, under the plan's names."""
    plan, rng = workshop.make(FAST), np.random.default_rng(5)
    assert isinstance(plan, Candidate)
    edits: list[Edit] = []
    used: set[str] = set()
    for kind in KINDS:
        now = apply(plan.schedule, edits)
        try:
            drawn = directed(Hot(now.schedule, rng, {}, now.roots), kind)
            apply(plan.schedule, [*edits, *drawn])
        except (LookupError, AmkError):
            continue
        used.add(kind)
        edits += [e for e in drawn if not getattr(e, "name", "").startswith("+")]
    assert len(used) >= 6 and len(edits) >= 5


@pytest.mark.turns(16)
def test_a_search_of_edits_learns_and_repeats_nothing(make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "LOOKS", {True: 4, False: 3})
    loop = make_loop(Structure(), evals=5)
    loop.run()
    trials = loop.state.trials
    assert loop.state.evals == 5 and len({t.key for t in trials}) == len(trials)
    assert all(t.proposed.operator and t.proposed.edits for t in trials)
    elites = Archive().elites(loop.context())
    assert len({e.cell for e in elites}) == len(elites) and elites[0].score <= 0
    assert Structure().ask(loop.context()) == Structure().ask(loop.context())
    for trial in trials:
        assert trial.gated is not None and not trial.gated.bottleneck, "what no device runs the gate does not simulate"
        trial.gated = trial.gated.model_copy(update={"bottleneck": "down: as the gate saw it"})
    archive = Archive()
    cells = {e.cell[0] for e in archive.elites(loop.context()) if e.index != START}
    assert cells == {"down: as the gate saw it"} and set(archive._times) <= {START}, "nothing is simulated twice"
    assert all(edit_of(text) for text in refused(loop.context()))


def test_where_a_device_measures_parents_far_behind_the_best_are_rare(make_loop: MakeLoop) -> None:
    """Near misses are drawn as often as the best, and what is five keeps behind about once in 150 times."""
    context, rng = make_loop(evals=1).context(), np.random.default_rng(0)
    near, far = (Elite(START, Design(PHASED), score, ("", "")) for score in (-0.004, 5 * log1p(MIN_GAIN)))
    drawn = [Structure()._another(context, [near, far], rng) is far for _ in range(2000)]
    assert 2 < sum(drawn) < 40
    sure = Structure(alone=False)
    assert 900 < sum(sure._another(context, [near, far], rng) is far for _ in range(2000)) < 1100


@pytest.mark.turns(12)
def test_beside_others_a_child_is_climbed_to(make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the simulator measures, what is proposed is SAFE and faster than what leads by its word, by several changes
    if one is not enough. From the leader on its way, before that is measured, no worse one is proposed."""
    monkeypatch.setattr(structure, "CLIMBS", 8)
    loop = make_loop(Structure(alone=False), evals=2)
    loop.run()
    state, workshop = loop.state, loop.gate.workshop
    assert state.evals == 2 and all(t.gated is not None and t.gated.verdict == "passed" for t in state.trials)
    assert any(structure.WITH in t.proposed.operator for t in state.trials)
    ms = []
    for trial in state.trials:
        candidate = workshop.make(loop.design_of(trial.index))
        assert isinstance(candidate, Candidate)
        ms.append(steps_ms(candidate.schedule, state.run.positions if state.run else ()))
    start = workshop.make(loop.space.start)
    assert isinstance(start, Candidate)
    for one, other in itertools.pairwise([steps_ms(start.schedule, state.run.positions if state.run else ()), *ms]):
        assert sum(map(log, other)) < sum(map(log, one)), "what leads is on its way or kept"


def test_a_refused_change_is_not_climbed_over(make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "CLIMBS", 6)
    loop = make_loop(Structure(alone=False), evals=3)
    asked: list[str] = []
    loop.gate.certify = lambda schedule: asked.append(schedule.name) or Judgement("UNSAFE", ("AMK302",))  # type: ignore[func-returns-value]
    assert loop.proposer.ask(loop.context()) == [] and asked


def test_an_arm_that_earns_nothing_is_asked_less(make_loop: MakeLoop) -> None:
    """One arm proposes what cannot be made, the first change of the other pays: once that is measured, only the other
    is asked, as long as it has something new."""
    idle = Scripted([[{**HELD, "node": f"decode/t/no.{n}"}] for n in range(60)], name="idle")
    arms = Arms((idle, Replay(tuple({"run_ahead": True, "kv_block": n} for n in (16, 32, 64, 128, 256)))))
    loop = make_loop(arms, evals=3)
    loop.run()
    by_arm = [t.proposed.proposer for t in loop.state.trials]
    assert by_arm.count("idle") < 20 and by_arm[-1] == "replay", by_arm
    assert loop.state.curve and [arm.name for arm in arms.order(loop.state)] == ["replay", "idle"]
