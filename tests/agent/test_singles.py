"""Every single change of the best is gone through once, and it is said what became of it."""

from collections import Counter
from dataclasses import dataclass
from math import exp

import numpy as np
import pytest

from amk.agent.device.measure import Block, Job
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.gate import Ready
from amk.agent.propose import singles
from amk.agent.propose.replay import Replay
from amk.agent.propose.singles import KNOB, Singles, unseen
from amk.agent.report.edits_table import kinds_of, spots_of
from amk.schedule_ir.edits.draw import Scene
from tests.agent.conftest import MakeLoop

KEPT = {"run_ahead": True}


@dataclass
class Losing(SimulatedBackend):
    """A device on which one knob gains 2%, and every edit loses 1%."""

    def times(self, job: Job, ready: Ready) -> Block:
        candidate = ready.candidate
        return tuple(exp(0.01 * bool(candidate.edits) - 0.02 * candidate.settings.run_ahead) for _ in job.positions)


def device() -> Losing:
    return Losing("h200", noise=Noise("quiet"), simulated=False)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(singles, "DRAWS", 2)


def test_all_are_measured_or_refused_once(make_loop: MakeLoop) -> None:
    loop = make_loop(Singles(), device(), evals=100)
    assert "nothing new" in loop.run()
    near = list(Singles().survey(loop.context(), decided=True))
    became = Counter(each.outcome for each in near)
    assert set(became) <= {"measured", "refused", "known"} and became["measured"] > 8
    assert len(near) == len(loop.state.trials) == len({each.single for each in near})
    assert all(each.single.kind != KNOB for each in near), "knobs of a plan without edits are the sweep's"
    refused = [t for t in loop.state.trials if not t.evaluated]
    assert all(t.gated is not None and (t.gated.codes or t.gated.detail) for t in refused)


def test_by_kind_and_by_place_every_change_is_counted_once(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the codes of what was refused, and the greatest gain of what was measured."""
    monkeypatch.setattr(singles, "DRAWS", 5)
    loop = make_loop(Singles(), device(), evals=100)
    loop.run()
    proposer = Singles()
    near = list(proposer.survey(loop.context(), decided=True))
    kinds, spots = kinds_of(loop.state, near, proposer.unseen), spots_of(loop.state, near)
    refused = Counter(
        code for t in loop.state.trials if t.gated is not None and t.gated.verdict != "passed"
        for code in t.gated.codes or (t.gated.verdict,)
    )  # fmt: skip
    assert refused and sum((spot.codes for spot in spots), Counter()) == refused
    assert sum((row.singles for row in kinds), Counter()) == Counter(each.outcome for each in near)
    once = {each.single.edits: each.outcome for each in near}
    assert sum((spot.singles for spot in spots), Counter()) == Counter(once.values())
    assert all(row.best is not None for row in kinds if row.measured) and len(spots) == len({s.name for s in spots})
    start = loop.context().workshop.make(loop.space.start)
    assert isinstance(start, Candidate)
    places = {leaf.name for leaf in Scene(start.schedule, np.random.default_rng(0)).leaves}
    assert sum(spot.name in places for spot in spots) > len(spots) / 2, "places are steps of the schedule"
    assert {row.more for row in kinds} <= {"", *(f"{20 * n}%" for n in range(6))}, "of five draws"


def test_the_chance_of_a_new_draw_is_estimated_without_bias() -> None:
    """Against the chance itself, where the distribution is known: 40 edits, some drawn often and some seldom."""
    assert unseen([]) == 0.0 and unseen([("a",)] * 5) == 0.0 and unseen([(str(n),) for n in range(5)]) == 1.0
    chances = 1.0 / np.arange(1, 41)
    chances /= chances.sum()
    errors = []
    for seed in range(200):
        drawn = np.random.default_rng(seed).choice(len(chances), size=60, p=chances)
        truth = 1.0 - chances[np.unique(drawn)].sum()
        errors.append(unseen([(str(each),) for each in drawn]) - truth)
    assert abs(float(np.mean(errors))) < 0.01 and float(np.std(errors)) < 0.1


def test_what_lost_before_is_not_measured_again(make_loop: MakeLoop) -> None:
    """A knob is kept afterwards: each edit would have to help the new best by twice what a keep needs."""
    loop = make_loop(Singles(), device(), evals=100)
    loop.run()
    edits = [{"edits": list(t.proposed.edits)} for t in loop.state.trials]
    again = make_loop(Replay((*edits, KEPT)), device(), evals=100, folder=loop.journal.folder.parent / "again")
    again.run()
    assert again.state.best == len(again.state.trials) - 1
    near = list(Singles().survey(again.context()))
    before = {single.single for single in Singles().survey(loop.context()) if single.outcome == "measured"}
    lost = {each.single for each in near if each.outcome == "lost"}
    assert lost == before & {each.single for each in near} and len(lost) > 5
    assert all(each.worth == pytest.approx(0.01, abs=1e-3) for each in near if each.outcome == "lost")
    assert {each.outcome for each in near} <= {"lost", "open"}
    (asked,) = Singles().ask(again.context())
    assert asked.parent == again.state.best and asked.settings["run_ahead"] is True


def test_where_the_best_has_edits_its_knobs_are_turned_too(make_loop: MakeLoop) -> None:
    loop = make_loop(Singles(), device(), evals=1)
    single = next(each.single for each in Singles().survey(loop.context()))
    best = {**KEPT, "edits": list(single.edits)}
    edited = make_loop(Replay((best,)), device(), evals=1, folder=loop.journal.folder.parent / "edited")
    edited.run()
    assert edited.state.best == 0
    near = list(Singles().survey(edited.context()))
    knobs = [each.single for each in near if each.single.kind == KNOB]
    assert len(knobs) == len(list(edited.space.neighbours(edited.history.settings[0])))
    design = knobs[0].on(edited.context().design(0))
    assert (
        design.edits == edited.history.designs[0].edits
        and len(edited.space.changes(design.settings, edited.history.settings[0])) == 1
    )


def test_where_the_simulator_measures_nothing_is_proposed(make_loop: MakeLoop) -> None:
    loop = make_loop(Singles(), evals=3)
    loop.run()
    assert loop.state.trials == []
