"""A search is exhausted when every point around its best is settled, and says so by name; not a point before."""

from dataclasses import dataclass, replace
from math import exp
from typing import Any

import pytest

from amk.agent.decide.neighbourhood import PLANS_BESIDE, WAITING, Neighbourhood, fate, sentence
from amk.agent.device.measure import Block, Job
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Workshop
from amk.agent.gate.certify import Judgement
from amk.agent.gate.gate import Ready
from amk.agent.journal.state import START, State, Trial
from amk.agent.journal.store import read_state
from amk.agent.propose.combine import Paid
from amk.agent.propose.replay import Replay
from amk.agent.propose.sweep import Sweep
from amk.agent.report.html import render
from amk.agent.report.survey_table import near_the_best
from amk.agent.run.loop import Loop
from amk.agent.run.session import offline
from amk.planner.settings import PHASED
from amk.planner.space import Space
from amk.schedule_ir.schedule import Schedule
from tests.agent.conftest import MakeLoop

KNOBS = ("warps", "run_ahead", "refill_fence")
LOSS, HELP = 0.02, 0.03


@dataclass
class Known(SimulatedBackend):
    """Every change of the phased plan loses LOSS, and two sizes together get `help` back."""

    help: float = HELP

    def times(self, job: Job, ready: Ready) -> Block:
        changed = Space.around(PHASED).changes(ready.candidate.settings, replace(PHASED, plan="search"))
        loss = LOSS * len(changed) - self.help * ({"warps", "kv_splits"} <= changed.keys())
        return tuple(exp(loss) for _ in job.positions)


@pytest.mark.turns(4)
def test_a_reduced_space_is_exhausted_and_the_journal_and_the_report_say_so(make_loop: MakeLoop) -> None:
    loop = make_loop(Sweep(), SimulatedBackend("h200", noise=Noise("quiet")), evals=100, survey=True)
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in KNOBS))
    loop.__post_init__()
    reason = loop.run()
    state = read_state(loop.journal.folder)
    known = state.surveyed
    assert (
        state.exhausted
        and known is not None
        and known.best == state.best != START
        and "exhausted around proposal" in reason
    )
    assert known.singles == sum(len(k.values) - 1 for k in loop.space.knobs)
    settled = known.tried + known.impossible + known.duplicate + known.avoided + known.bounded
    assert settled == known.singles + known.pairs and not known.open
    context = loop.context()
    assert all(fate(context, point) != "open" for point in loop.space.neighbours(context.incumbent()))
    faster = [t for t in state.trials if t.score is not None and t.score < state.best_score - 0.01]
    assert not faster and "exhausted around proposal" in render(state, None, None)


def test_one_point_less_and_it_is_not_exhausted(make_loop: MakeLoop) -> None:
    whole = Space.around(PHASED)
    knobs = tuple(k for k in whole.knobs if k.name == "warps")
    others = [value for value in knobs[0].values if value != whole.start.warps]
    loop = make_loop(Replay(tuple({"warps": value} for value in others[:-1])), evals=100, survey=True)
    loop.space = replace(whole, knobs=knobs)
    loop.__post_init__()
    assert "differ from" in loop.run() and not loop.state.exhausted
    assert loop.state.surveyed is not None and loop.state.surveyed.open == 1


def test_what_a_short_look_does_not_plan_counts_as_open(make_loop: MakeLoop, workshop: Workshop) -> None:
    """A report after a crash plans nothing, and so may not call a kernel known or a search exhausted."""
    whole = Space.around(PHASED)
    loop = make_loop(Replay(({"warps": 6},)), evals=1)
    loop.space = replace(whole, knobs=tuple(k for k in whole.knobs if k.name in ("warps", "overlay")))
    loop.__post_init__()
    loop.run()
    fresh = replace(loop.context(), workshop=Workshop(workshop.model, workshop.target, workshop.context))
    fates = {single.change: single.fate for single in Neighbourhood().survey(fresh, plans=0).singles}
    assert fates.pop(("warps", 6)) == "tried" and set(fates.values()) == {"open"}
    assert not fresh.workshop.knows(loop.space.start), "nothing was planned"
    some = Neighbourhood().survey(fresh, plans=2).event()
    every = Neighbourhood().survey(fresh).event()
    assert some.open >= every.open and some.singles == every.singles


class EveryKernel(dict[str, int]):
    def get(self, key: str, default: Any = None) -> int:
        return 0


@dataclass
class Waiting:
    """A state in which proposals wait, and every kernel was tried."""

    state: State
    by_key: EveryKernel

    @property
    def open_trials(self) -> list[Trial]:
        return WAITING * self.state.trials

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


def test_while_proposals_wait_a_look_makes_few_plans_and_goes_on_next_time(
    make_loop: MakeLoop, workshop: Workshop
) -> None:
    """Whoever waits for the search does not wait for a thousand plans. Nothing is called settled before its plan."""
    loop = make_loop(Replay(({"warps": 6},)), evals=1)
    names = ("warps", "overlay", "run_ahead", "slots")
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in names))
    loop.__post_init__()
    loop.run()
    fresh = Workshop(workshop.model, workshop.target, 1984)  # a context whose plans no other test has made
    state: Any = Waiting(loop.state, EveryKernel())
    busy, near, counts = replace(loop.context(), workshop=fresh, state=state), Neighbourhood(), [0]
    points = sum(1 for _ in loop.space.neighbours(loop.space.start))
    while (settled := near.look(busy, last=False)) is None:
        assert near.following(busy) is None
        counts.append(len(fresh._keys))
        assert counts[-2] < counts[-1] <= counts[-2] + 2 * PLANS_BESIDE + 1, "the start is planned too"
    assert len(counts) > 2 and settled.singles == points and settled.pairs > points and not settled.open
    assert settled.duplicate + settled.impossible + settled.tried == settled.singles + settled.pairs


@pytest.mark.turns(4)
def test_the_next_best_has_a_neighbourhood_of_its_own(make_loop: MakeLoop) -> None:
    loop = make_loop(Sweep(), SimulatedBackend("h200", noise=Noise("quiet")), evals=100, survey=True)
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in KNOBS))
    loop.__post_init__()
    loop.run()
    assert loop.state.surveyed is not None and loop.state.surveyed.best == loop.state.best


def test_two_changes_are_left_when_sum_and_interaction_are_too_little(
    make_loop: MakeLoop,
) -> None:
    """Times of which everything is known: knobs add up, but two sizes help each other by 3%."""
    loop = make_loop(Sweep(), Known("h200", noise=Noise("quiet")), evals=200, survey=True)
    names = ("warps", "kv_splits", "run_ahead")
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in names))
    loop.__post_init__()
    loop.run()
    survey = loop.neighbourhood.survey(loop.context())
    assert loop.state.exhausted and loop.state.best == START and not survey.open
    by_knobs = {pairs.knobs: pairs for pairs in survey.pairs}
    helped, alone = by_knobs["kv_splits", "warps"], by_knobs["kv_splits", "run_ahead"]
    assert helped.help == pytest.approx(HELP) and alone.help == pytest.approx(0.0, abs=1e-9)
    assert alone.fates["tried"] == 1 and alone.fates["bounded"] > 0 and alone.reach < survey.least_gain
    text = near_the_best(survey)
    assert loop.state.exhaustions == [(loop.state.evals, survey.event())]
    assert "kv_splits, warps" in text and "bounded" in text and sentence(survey.event()).split(":")[0] in text


@pytest.mark.turns(4)
def test_a_pair_that_may_gain_enough_is_open(make_loop: MakeLoop) -> None:
    """With a little more help, all pairs of the two sizes have to be measured."""
    loop = make_loop(Sweep(), Known("h200", noise=Noise("quiet"), help=3 * LOSS), evals=200, survey=True)
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in ("warps", "kv_splits")))
    loop.__post_init__()
    loop.run()
    assert loop.state.best != START


@dataclass
class Gains(SimulatedBackend):
    """`values` gain so much each, all others lose LOSS."""

    values: tuple[tuple[str, object], ...] = ()
    gain: float = 0.004

    def times(self, job: Job, ready: Ready) -> Block:
        changed = Space.around(PHASED).changes(ready.candidate.settings, replace(PHASED, plan="search"))
        return tuple(
            exp(sum(-self.gain if item in self.values else LOSS for item in changed.items())) for _ in job.positions
        )


PAYING = (("warps", 12), ("run_ahead", True), ("overlay", False))


def only(loop: Loop, *names: str) -> Loop:
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in names))
    loop.__post_init__()
    return loop


def test_three_changes_that_pay_too_little_alone_are_tried_together(make_loop: MakeLoop) -> None:
    backend = Gains("h200", noise=Noise("quiet"), values=PAYING, gain=0.0024)
    loop = only(make_loop(Sweep(), backend, evals=60, survey=True), *dict(PAYING))
    loop.run()
    assert loop.state.exhausted and loop.state.best == START
    (found,) = Paid().ask(loop.context())
    assert all(found.settings[name] == value for name, value in PAYING) and "3 changes" in found.why


def test_from_the_hand_tuned_plan_the_first_knob_is_proposed_by_the_sweep(make_loop: MakeLoop) -> None:
    loop = make_loop(offline("knobs", prior=False), survey=True)
    assert loop.state.run is not None and loop.proposer.ask(loop.context())[0].proposer != "sweep"
    loop.state.run = loop.state.run.model_copy(update={"start": "fast"})
    assert loop.proposer.ask(loop.context())[0].proposer == "sweep"


@pytest.mark.turns(4)
def test_two_values_that_the_gate_refuses_are_each_avoided_by_themselves(make_loop: MakeLoop) -> None:
    def refusing(schedule: Schedule) -> Judgement:
        bad = schedule.launch.warps in (2, 16)
        return Judgement("UNSAFE", ("AMK403",), "refused") if bad else Judgement("SAFE", certificate="{}")

    points = [{"warps": (2, 16)[n % 2], "kv_splits": (1, 2, 4, 6, 8, 12)[n]} for n in range(6)]
    loop = make_loop(Replay(({"kv_splits": 1}, *points)), evals=20, survey=True)
    loop.gate.certify = refusing
    loop.run()
    context = loop.context()
    assert context.history.blocked == {frozenset({("warps", 2)}), frozenset({("warps", 16)})}
    assert not context.history.hopeless(replace(loop.space.start, warps=12))


@pytest.mark.turns(4)
def test_what_passed_its_pilot_holds_up_nothing(make_loop: MakeLoop) -> None:
    """It waits for others that are tested with it; meanwhile the sweep goes on, later it is tested alone."""
    backend, when = Gains("h200", noise=Noise("quiet"), values=(("run_ahead", True),), gain=0.004), list[int]()

    def watch(state: State) -> None:
        when.extend([state.evals] if any("paired test" in trial.measured for trial in state.trials) else [])

    loop = only(
        make_loop(Sweep(), backend, evals=150, survey=True), "warps", "run_ahead", "kv_splits", "overlay", "hint_slack"
    )
    loop.gate.patience, loop.gate.ahead, loop.watch = 16, 8, watch
    loop.run()
    first = next(trial for trial in loop.state.trials if "paired test" in trial.measured)
    assert first.proposed.settings["run_ahead"] and first.decided is not None and first.decided.outcome == "rejected"
    assert loop.state.exhausted and when[0] <= first.index + loop.gate.patience + 2 < loop.state.evals
