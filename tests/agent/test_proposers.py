"""Every offline proposer: within the space, nothing twice, the same again after a resume, better than nothing."""

from dataclasses import replace
from math import log
from pathlib import Path
from statistics import median

import pytest

from amk.agent.device.measure import positions_within
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate, Workshop
from amk.agent.propose import beam, structure
from amk.agent.propose.portfolio import Portfolio
from amk.agent.run.session import offline
from amk.planner.formats import formats
from amk.planner.search import Problem
from amk.planner.settings import FAST, PHASED, Settings
from amk.planner.space import Space
from amk.schedule_ir.schedule import Schedule
from amk.simulator.predict import Simulator
from tests.agent.compare import Perturbed, run_one, table
from tests.agent.conftest import CONTEXT, MakeLoop, fences_kept

INFORMED = ("local", "evolution", "surrogate", "beam", "combine", "leap", "knobs")
NAMES = ("random", "structure", "portfolio", *INFORMED)
FEW = 6
"""Plans that a beam simulates where it need not find anything."""


@pytest.fixture(scope="module")
def default_gain(workshop: Workshop) -> float:
    """Log speed of the default plan over the phased one, as the simulated device sees them."""
    simulator, positions = Simulator(), positions_within(CONTEXT)

    def score(settings: Settings) -> float:
        candidate = workshop.make(settings)
        assert isinstance(candidate, Candidate)
        return sum(log(simulator.step_ms(candidate.schedule, pos)) for pos in positions) / len(positions)

    return score(PHASED) - score(FAST)


SHARE = 1 / 3
EVALS = {"leap": 45, "surrogate": 25, "local": 30, "evolution": 30, "combine": 25, "knobs": 16, "beam": 12}
"""The beam asks the simulator first; `leap` changes much at once, and its own times alone say what each is worth."""


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", INFORMED)
def test_a_proposer_improves_the_phased_plan_and_repeats_nothing(
    make_loop: MakeLoop, tmp_path: Path, name: str, default_gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one seed of blind steps finds is chance, so local search has three and their median counts: of twenty, one
    found less than this, and half more than twice the default's gain. How fast each gets to a good plan is a record
    (`tests.agent.time_to_best`)."""
    monkeypatch.setattr(beam, "EXPANSIONS", 12)
    found = []
    for seed in range(3 if name == "local" else 1):
        device, folder = SimulatedBackend("h200", 1, noise=Noise("quiet")), tmp_path / str(seed)
        loop = make_loop(offline(name), device, evals=EVALS[name], seed=seed, folder=folder)
        loop.run()
        found.append(-loop.state.best_score)
        verdicts = [t.gated.verdict for t in loop.state.trials if t.gated]
        assert "duplicate" not in verdicts and "impossible" not in verdicts
        assert loop.state.evals == EVALS[name]
    assert default_gain > log(1.05), "there is something to find"
    assert median(found) > SHARE * default_gain


def test_the_beam_simulates_plans_of_the_weights_that_the_run_has(
    make_loop: MakeLoop, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam, "EXPANSIONS", 2)
    times, labels = Problem.times, list[str]()

    def noted(self: Problem, schedule: Schedule) -> tuple[float, ...]:
        labels.append(schedule.weights_label)
        return times(self, schedule)

    monkeypatch.setattr(Problem, "times", noted)
    coded = Workshop(workshop.model, workshop.target, CONTEXT, formats("int8"))
    context = replace(make_loop().context(), workshop=coded)
    beam.Beam().grow(context, context.space.start)
    assert labels == ["int8"] * 2


@pytest.mark.turns(24)
def test_blind_draws_repeat_nothing_and_learn_which_values_are_refused(make_loop: MakeLoop) -> None:
    loop = make_loop(offline("random"), evals=24)
    loop.run()
    verdicts = [t.gated.verdict for t in loop.state.trials if t.gated]
    assert "duplicate" not in verdicts and "impossible" not in verdicts
    assert loop.state.evals == 24 and 0 < verdicts.count("unsafe") <= 4


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_proposer_continues_as_the_old_one_would(
    make_loop: MakeLoop, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam, "EXPANSIONS", FEW)
    monkeypatch.setattr(structure, "LOOKS", {True: 3, False: 3})
    monkeypatch.setattr(structure, "CLIMBS", 6)
    loop = make_loop(offline(name), evals=4)
    loop.run()
    assert list(offline(name).ask(loop.context())) == list(loop.proposer.ask(loop.context()))


@pytest.mark.turns(12)
def test_the_bandit_tries_every_arm_and_then_the_best(make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "EXPANSIONS", FEW)
    portfolio = offline("knobs")
    assert isinstance(portfolio, Portfolio)
    loop = make_loop(portfolio, evals=20)
    loop.run()
    used = [t.proposed.proposer for t in loop.state.trials]
    assert set(used) == {arm.name for arm in portfolio.arms}


@pytest.mark.turns(16)
def test_comparison_at_equal_budgets(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "EXPANSIONS", FEW)
    problem = Perturbed(workshop, Space.around(PHASED), fences_kept, (128, 2047))
    results = [run_one(lambda n=n: offline(n), problem, s, 6) for n in ("random", "beam") for s in (0,)]
    assert all(len(r.curve) == 7 and r.curve[0] == 0.0 for r in results)
    assert {row[0] for row in table(results, (3, 6))} == {"random", "beam"}
