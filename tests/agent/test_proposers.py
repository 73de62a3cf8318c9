"""Every offline proposer: within the space, nothing twice, the same again after a resume, better than nothing."""

from math import exp

import pytest

from amk.agent.candidate import Workshop
from amk.agent.compare import Perturbed, run_one, table
from amk.agent.noise import Noise
from amk.agent.propose import beam
from amk.agent.propose.portfolio import Portfolio
from amk.agent.session import offline
from amk.agent.simulated import SimulatedBackend
from amk.planner.settings import NAIVE
from amk.planner.space import Space
from tests.agent.conftest import MakeLoop, fences_kept

NAMES = ("random", "local", "evolution", "surrogate", "beam", "combine", "portfolio")


@pytest.mark.parametrize("name", NAMES)
def test_a_proposer_improves_the_naive_plan_and_repeats_nothing(make_loop: MakeLoop, name: str) -> None:
    loop = make_loop(offline(name), SimulatedBackend("h200", 1, noise=Noise("quiet")), evals=25)
    loop.run()
    assert exp(-loop.state.best_score) > 1.1
    verdicts = [t.gated.verdict for t in loop.state.trials if t.gated]
    assert "duplicate" not in verdicts and "impossible" not in verdicts
    assert loop.state.evals == 25


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_proposer_continues_as_the_old_one_would(make_loop: MakeLoop, name: str) -> None:
    loop = make_loop(offline(name), evals=8)
    loop.run()
    assert list(offline(name).ask(loop.context())) == list(loop.proposer.ask(loop.context()))


def test_refused_values_are_learned(make_loop: MakeLoop) -> None:
    loop = make_loop(offline("random"), evals=40)
    loop.run()
    refused = [t.index for t in loop.state.trials if t.gated and t.gated.verdict == "unsafe"]
    assert 0 < len(refused) <= 4


def test_the_bandit_tries_every_arm_and_then_the_best(make_loop: MakeLoop) -> None:
    portfolio = offline("portfolio")
    assert isinstance(portfolio, Portfolio)
    loop = make_loop(portfolio, evals=20)
    loop.run()
    used = [t.proposed.proposer for t in loop.state.trials]
    assert set(used) == {arm.name for arm in portfolio.arms}


def test_comparison_at_equal_budgets(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "EXPANSIONS", 16)
    problem = Perturbed(workshop, Space.around(NAIVE), fences_kept, (128, 2047))
    seeds = {"random": (0, 1), "beam": (0,)}  # a beam is grown anew for every seed, which takes most of the time
    results = [run_one(lambda n=n: offline(n), problem, s, 6) for n, given in seeds.items() for s in given]
    assert all(len(r.curve) == 7 and r.curve[0] == 0.0 for r in results)
    assert {row[0] for row in table(results, (3, 6))} == {"random", "beam"}
