"""A search is exhausted when every point around its best is settled, and says so by name; not a point before."""

from dataclasses import replace

from amk.agent.html_report import render
from amk.agent.journal import read_state
from amk.agent.noise import Noise
from amk.agent.propose.combine import Combine
from amk.agent.propose.local import Local
from amk.agent.propose.replay import Replay
from amk.agent.simulated import SimulatedBackend
from amk.agent.state import START
from amk.agent.surroundings import fate
from amk.planner.settings import NAIVE
from amk.planner.space import Space
from tests.agent.conftest import MakeLoop

KNOBS = ("warps", "run_ahead", "refill_fence")


def test_a_reduced_space_is_exhausted_and_the_journal_and_the_report_say_so(make_loop: MakeLoop) -> None:
    loop = make_loop(Combine(), SimulatedBackend("h200", noise=Noise("quiet")), evals=100)
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in KNOBS))
    loop.__post_init__()
    reason = loop.run()
    state = read_state(loop.journal.folder)
    known = state.exhausted
    assert known is not None and known.best == state.best != START and "exhausted around proposal" in reason
    assert known.singles == sum(len(k.values) - 1 for k in loop.space.knobs)
    assert known.tried + known.impossible + known.duplicate + known.avoided == known.singles + known.pairs
    context = loop.context()
    points = [*loop.space.neighbours(context.incumbent()), *context.paying_pairs(context.incumbent())]
    assert all(fate(context, point) is not None for point in points)
    faster = [t for t in state.trials if t.score is not None and t.score < state.best_score - 0.01]
    assert not faster and "exhausted around proposal" in render(state, None, None)


def test_one_point_less_and_it_is_not_exhausted(make_loop: MakeLoop) -> None:
    whole = Space.around(NAIVE)
    knobs = tuple(k for k in whole.knobs if k.name == "warps")
    others = [value for value in knobs[0].values if value != whole.start.warps]
    loop = make_loop(Replay(tuple({"warps": value} for value in others[:-1])), evals=100)
    loop.space = replace(whole, knobs=knobs)
    loop.__post_init__()
    assert "not all around the best was tried" in loop.run() and loop.state.exhausted is None


def test_the_next_best_has_surroundings_of_its_own(make_loop: MakeLoop) -> None:
    loop = make_loop(Local(), SimulatedBackend("h200", noise=Noise("quiet")), evals=100)
    loop.space = replace(loop.space, knobs=tuple(k for k in loop.space.knobs if k.name in KNOBS))
    loop.__post_init__()
    loop.run()
    assert loop.state.exhausted is not None and loop.state.exhausted.best == loop.state.best
