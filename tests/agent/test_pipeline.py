"""What waits for the gate and for its paired test: the gate always has as many, and a run that was cut off repeats."""

import json
from concurrent.futures import Future
from pathlib import Path

import pytest

from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate, Workshop
from amk.agent.gate.gate import Gate, Judged, not_compiled
from amk.agent.journal.events import EVENT, AnyEvent, Limits, Measured, Proposed, SessionStarted
from amk.agent.journal.state import State, fold
from amk.agent.journal.store import MIRROR, Journal
from amk.agent.propose.evolution import Evolution
from amk.agent.propose.leap import Leap
from amk.agent.propose.local import Local
from amk.agent.propose.portfolio import Portfolio
from amk.agent.run.loop import Loop
from amk.planner.settings import PHASED
from amk.planner.space import Space
from tests.agent.conftest import Blind, fences_kept, start_run

AHEAD = 4
EVALS = 14


class Pool(Gate):
    """Its judgements are taken when a device turns to them, as those of other processes."""

    begun: list[int]

    @property
    def immediate(self) -> bool:
        return False

    def submit(self, index: int, candidate: Candidate) -> Future[Judged]:
        self.begun = [*getattr(self, "begun", []), index]
        return super().submit(index, candidate)


def loop_in(folder: Path, workshop: Workshop, begun: list[tuple[AnyEvent, float]], evals: int = EVALS) -> Loop:
    """A run that goes on after the events `begun`, if any."""
    journal, device = Journal(folder), SimulatedBackend("h200", 5, noise=Noise("quiet"))
    limits = Limits(evals=evals)
    for event, _ in begun:
        journal.append(event)
    if begun:
        number = len(journal.state.sessions) + 1
        journal.append(SessionStarted(session=number, device=device.device, backend="x", simulated=True, limits=limits))
    else:
        start_run(journal, device, limits, 5)
    gate = Pool(workshop, fences_kept, not_compiled, ahead=AHEAD, patience=3)
    arms = Portfolio((Local(), Evolution(), Leap()))
    return Loop(journal, Space.around(PHASED), gate, (device,), arms, neighbourhood=Blind())


def events(folder: Path) -> list[tuple[AnyEvent, float]]:
    rows = map(json.loads, (folder / MIRROR).read_text().splitlines())
    return [(EVENT.validate_python(row["event"]), row["elapsed"]) for row in rows]


def fates(state: State) -> list[object]:
    return [(t.proposed, t.gated, t.decided) for t in state.trials]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, workshop: Workshop) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    loop_in(folder, workshop, []).run()
    return folder


@pytest.mark.turns(4)
def test_what_waits_for_its_paired_test_holds_up_no_proposal(whole: Path) -> None:
    waiting, queued = [], []
    written = events(whole)
    for number, (event, _) in enumerate(written):
        state = fold(written[:number])
        if isinstance(event, Proposed):
            waiting.append(sum("pilot" in trial.measured for trial in state.open_trials))
        elif isinstance(event, Measured) and len(state.trials) < EVALS:
            queued.append(sum(not trial.evaluated for trial in state.open_trials))
    assert max(waiting) > 1 and min(queued) == AHEAD


@pytest.mark.turns(24)
@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
def test_a_run_that_was_cut_off_anywhere_goes_on_as_it_would_have(
    whole: Path, tmp_path: Path, workshop: Workshop, share: float
) -> None:
    """Even where the gate judges ahead: what a proposal knows of does not depend on when the driver ended."""
    written = events(whole)
    before = int(share * len(written))
    for cut in (before, before + 1, before + 2):
        loop = loop_in(tmp_path / str(cut), workshop, written[:cut])
        loop.run()
        assert isinstance(loop.gate, Pool) and loop.gate.begun[0] == fold(written[:cut]).best, "nothing waits longer"
        assert fates(loop.state) == fates(fold(written)), f"after {written[cut - 1][0].kind}"


@pytest.mark.turns(4)
def test_a_limit_that_was_lowered_holds_and_what_waits_is_taken_up_by_a_higher_one(
    whole: Path, tmp_path: Path, workshop: Workshop
) -> None:
    written = events(whole)
    states = ((cut, fold(written[:cut])) for cut in range(len(written)))
    cut, begun = next((n, s) for n, s in states if s.evals >= 2 and s.committed >= s.evals + 2 and not s.leases)
    loop = loop_in(tmp_path / "run", workshop, written[:cut], begun.evals)
    assert f"{begun.evals} evaluations" in loop.run() and loop.state.evals == begun.evals
    assert len([t for t in loop.state.open_trials if not t.evaluated]) >= 2
    loop.journal.close()
    loop = loop_in(tmp_path / "again", workshop, events(tmp_path / "run"))
    loop.run()
    assert fates(loop.state) == fates(fold(written))
