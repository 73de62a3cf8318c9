"""A search is exhausted when every point around its best is settled, and says so by name; not a point before."""

from dataclasses import dataclass, replace
from math import exp

import pytest

from amk.agent.gate import Ready
from amk.agent.html_report import render
from amk.agent.journal import read_state
from amk.agent.measure import Block, Job
from amk.agent.noise import Noise
from amk.agent.propose.replay import Replay
from amk.agent.propose.sweep import Sweep
from amk.agent.simulated import SimulatedBackend
from amk.agent.state import START
from amk.agent.surroundings import fate, told
from amk.agent.survey_table import near_the_best
from amk.planner.settings import PHASED
from amk.planner.space import Space
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


def test_a_reduced_space_is_exhausted_and_the_journal_and_the_report_say_so(make_loop: MakeLoop) -> None:
    loop = make_loop(Sweep(), SimulatedBackend("h200", noise=Noise("quiet")), evals=100)
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
    loop = make_loop(Replay(tuple({"warps": value} for value in others[:-1])), evals=100)
    loop.space = replace(whole, knobs=knobs)
    loop.__post_init__()
    assert "differ from" in loop.run() and not loop.state.exhausted
    assert loop.state.surveyed is not None and loop.state.surveyed.open == 1


def test_the_next_best_has_surroundings_of_its_own(make_loop: MakeLoop) -> None:
    loop = make_loop(Sweep(), SimulatedBackend("h200", noise=Noise("quiet")), evals=100)
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in KNOBS))
    loop.__post_init__()
    loop.run()
    assert loop.state.surveyed is not None and loop.state.surveyed.best == loop.state.best


def test_two_changes_are_left_when_sum_and_interaction_are_too_little(
    make_loop: MakeLoop,
) -> None:
    """Times of which everything is known: knobs add up, but two sizes help each other by 3%."""
    loop = make_loop(Sweep(), Known("h200", noise=Noise("quiet")), evals=200)
    names = ("warps", "kv_splits", "run_ahead")
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in names))
    loop.__post_init__()
    loop.run()
    survey = loop.surroundings.survey(loop.context())
    assert loop.state.exhausted and loop.state.best == START and not survey.open
    by_knobs = {pairs.knobs: pairs for pairs in survey.pairs}
    helped, alone = by_knobs["kv_splits", "warps"], by_knobs["kv_splits", "run_ahead"]
    assert helped.help == pytest.approx(HELP) and alone.help == pytest.approx(0.0, abs=1e-9)
    assert alone.fates["tried"] == 1 and alone.fates["bounded"] > 0 and alone.reach < survey.needed
    text = near_the_best(survey)
    assert loop.state.exhaustions == [(loop.state.evals, survey.event())]
    assert "kv_splits, warps" in text and "bounded" in text and told(survey.event()).split(":")[0] in text


def test_a_pair_that_may_gain_enough_is_open(make_loop: MakeLoop) -> None:
    """With a little more help, all pairs of the two sizes have to be measured."""
    loop = make_loop(Sweep(), Known("h200", noise=Noise("quiet"), help=3 * LOSS), evals=200)
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in ("warps", "kv_splits")))
    loop.__post_init__()
    loop.run()
    assert loop.state.best != START
