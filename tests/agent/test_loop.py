"""The state machine: gate before device, dedup, budgets, faults, suggestions from outside."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from amk.agent.decide.keep import compared
from amk.agent.decide.rulings import has_lost
from amk.agent.device.measure import Fault, Job, Samples
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.gate import Ready
from amk.agent.journal import budget
from amk.agent.journal import inbox as inbox_module
from amk.agent.journal.events import Limits
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import START
from amk.agent.propose.base import Context
from amk.agent.propose.local import Local
from amk.agent.propose.random_draw import RandomDraw
from amk.agent.propose.replay import Replay
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.simulator.predict import Simulator
from tests.agent.conftest import MakeLoop


@dataclass
class Recording(SimulatedBackend):
    """Remembers what reached the device; `faults` are returned first."""

    ran: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        self.ran.append(candidate.candidate.key)
        assert candidate.judgement.outcome == "SAFE"
        if job.index != START and self.faults:
            return self.faults.pop(0)
        return super().measure(job, incumbent, candidate)


def points(*changes: dict[str, object]) -> Replay:
    base = {"warps": 8, "slots": 4}
    return Replay(tuple(base | c for c in changes))


def test_what_is_refused_never_reaches_the_device(make_loop: MakeLoop) -> None:
    backend = Recording("h200")
    loop = make_loop(points({"refill_fence": False}, {"warps": 3}, {"run_ahead": True}, {"run_ahead": True}), backend)
    loop.run()
    verdicts = [t.gated.verdict for t in loop.state.trials if t.gated]
    assert verdicts == ["unsafe", "impossible", "passed", "duplicate"]
    assert loop.state.trials[0].gated.codes == ("AMK507",)  # type: ignore[union-attr]
    assert loop.state.trials[0].key not in backend.ran and loop.state.evals == 1


def test_the_start_itself_is_a_duplicate(make_loop: MakeLoop) -> None:
    loop = make_loop(Replay(({},)))
    loop.run()
    assert loop.state.trials[0].gated.verdict == "duplicate" and loop.state.evals == 0  # type: ignore[union-attr]


def test_a_better_plan_is_kept_and_becomes_the_incumbent(make_loop: MakeLoop) -> None:
    loop = make_loop(
        points({"run_ahead": True}, {"run_ahead": True, "warps": 2}), SimulatedBackend("h200", noise=Noise("quiet"))
    )
    loop.run()
    first, second = loop.state.trials
    assert first.decided is not None and first.decided.outcome == "kept" and loop.state.best == 0
    assert second.decided is not None and second.decided.outcome == "rejected"
    assert set(first.measured) == {"pilot", "paired test", "confirm"} and set(second.measured) == {"pilot"}
    assert loop.state.curve[0].score == pytest.approx(first.decided.score)


def test_evaluations_end_the_search(make_loop: MakeLoop) -> None:
    loop = make_loop(evals=4)
    assert "4 evaluations" in loop.run() and loop.state.evals == 4


@pytest.mark.turns(12)
def test_a_proposer_without_ideas_ends_the_search(make_loop: MakeLoop) -> None:
    loop = make_loop(points({"run_ahead": True}), evals=50, survey=True)
    assert "nothing new; of " in loop.run() and not loop.state.exhausted


@pytest.mark.parametrize("times", [1, 2])
def test_a_failure_is_tried_again_once(make_loop: MakeLoop, times: int) -> None:
    backend = Recording("h200", faults=[Fault("crashed", "SIGSEGV")] * times)
    loop = make_loop(points({"run_ahead": True}), backend)
    loop.run()
    trial = loop.state.trials[0]
    assert trial.decided is not None and len(trial.faults) == times
    assert trial.decided.outcome == ("kept" if times == 1 else "failed")
    assert not loop.state.leases


def test_a_suspect_result_is_quarantined_at_once(make_loop: MakeLoop) -> None:
    backend = Recording("h200", faults=[Fault("below_floor", "too fast", suspect=True)])
    loop = make_loop(points({"run_ahead": True}), backend)
    loop.run()
    decided = loop.state.trials[0].decided
    assert decided is not None and decided.outcome == "quarantined" and decided.reason.startswith("below_floor")


def test_a_lost_device_ends_the_run_with_its_reason(make_loop: MakeLoop) -> None:
    backend = Recording("h200", faults=[Fault("device_lost", "2 canaries failed")])
    loop = make_loop(points({"run_ahead": True}), backend)
    with pytest.raises(AmkError, match="AMK707"):
        loop.run()
    assert loop.state.quarantined and not loop.state.leases and loop.state.finished is None


def test_changed_judges_stop_the_search_before_a_keep(make_loop: MakeLoop) -> None:
    loop = make_loop(points({"run_ahead": True}))

    def changed() -> None:
        raise RuntimeError("changed")

    loop.judges_unchanged = changed
    with pytest.raises(RuntimeError):
        loop.run()
    assert loop.state.best == START


def test_suggestions_from_outside_go_first_and_once(make_loop: MakeLoop) -> None:
    loop = make_loop(points({"run_ahead": True}), evals=2)
    inbox = inbox_module.Inbox(loop.journal.folder / inbox_module.INBOX)
    handle = inbox.put({"warps": 12, "run_ahead": True}, "from a friend")
    loop.inbox = lambda: inbox.take(loop.state.handles)
    loop.run()
    first = loop.state.trials[0]
    assert first.proposed.handle == handle and first.proposed.proposer == "mcp" and first.evaluated
    assert sum(t.proposed.handle == handle for t in loop.state.trials) == 1


class Flat(Simulator):
    def steps_ms(self, schedule: Schedule, positions: Sequence[int]) -> tuple[float, ...]:
        return tuple(1.0 + pos / 1e6 for pos in positions)


@pytest.mark.turns(12)
def test_a_night_of_identical_candidates_through_the_loop_keeps_none(make_loop: MakeLoop) -> None:
    backend = SimulatedBackend("h200", 3, Flat(), Noise("heavy", 0.006))
    loop = make_loop(RandomDraw(), backend, evals=100)
    loop.run()
    assert loop.state.evals == 100 and loop.state.best == START


@pytest.mark.turns(12)
def test_what_lost_its_pilot_is_decided_before_anything_else_is_measured(make_loop: MakeLoop) -> None:
    """Otherwise a slow plan waits behind all better ones of later batches, and something near the best stays open."""
    waiting: list[int] = []

    class Watching(Recording):
        def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
            waiting.extend(t.index for t in loop.state.open_trials if has_lost(loop.state, t))
            return super().measure(job, incumbent, candidate)

    loop = make_loop(RandomDraw(), Watching("h200", 0), evals=20)
    loop.gate.patience = 8
    loop.run()
    assert sum("pilot" in t.measured for t in loop.state.trials) > 10 and not waiting


def test_what_passed_its_pilot_waits_for_better_ones_which_are_measured_against_it(make_loop: MakeLoop) -> None:
    """The second passes while the first waits, and is tested first; a third that does not keep up ends early."""
    pilots: list[Job] = []

    class Jobs(Recording):
        def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
            pilots.extend([job] if job.phase == "pilot" else [])
            return super().measure(job, incumbent, candidate)

    found = points({"run_ahead": True}, {"run_ahead": True, "handoff": "tagged"}, {"warps": 2}, {"warps": 12})
    loop = make_loop(found, Jobs("h200", noise=Noise("quiet")), evals=4)
    loop.gate.patience, loop.gate.ahead = 8, 4
    loop.run()
    first, second, third, _ = loop.state.trials
    gains = [-float(np.median(t.measured["pilot"].log_ratios)) for t in (first, second)]
    assert 0.02 < gains[0] < gains[1], "both pay, the second more"
    assert "paired test" in second.measured and "paired test" not in first.measured and first.decided is not None
    ends = [job.slower for job in pilots]
    assert ends[1] == pytest.approx(ends[0] - gains[0]) and ends[2] == pytest.approx(ends[0] - gains[1])
    assert len(third.measured["pilot"].log_ratios) < 6


def test_in_the_last_minute_nothing_waits(make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found late is kept, not left behind."""
    found = points({"run_ahead": True}, {"warps": 2}, {"warps": 12})
    loop = make_loop(found, SimulatedBackend("h200", noise=Noise("quiet")), evals=3)
    loop.gate.patience, loop.gate.ahead = 8, 3
    monkeypatch.setattr(budget, "closing", lambda limits, elapsed: True)
    loop.run()
    assert loop.state.curve[0].index == 0 and loop.state.curve[0].evals == 1


@pytest.mark.parametrize(
    ("minutes", "elapsed", "closes"), [(8.0, 419.0, False), (8.0, 421.0, True), (None, 1e6, False)]
)
def test_the_last_minute_begins_in_time_to_test_and_confirm(
    minutes: float | None, elapsed: float, closes: bool
) -> None:
    assert budget.closing(Limits(minutes=minutes), elapsed) is closes


@pytest.mark.turns(4)
def test_the_simulator_is_never_below_the_floor(make_loop: MakeLoop) -> None:
    from amk.simulator.floor import floor_ms

    loop = make_loop(Local(), evals=6)
    loop.run()
    for trial in loop.state.trials:
        if trial.evaluated:
            candidate = loop.gate.workshop.make(loop.settings_of(trial.index))
            for pos in (1, 128, 2047):
                assert Simulator().step_ms(candidate.schedule, pos) >= floor_ms(candidate.schedule, pos)  # type: ignore[union-attr]


@pytest.mark.turns(4)
def test_the_best_is_compared_with_a_plan_that_nobody_proposes_from(make_loop: MakeLoop) -> None:
    plain, beside = make_loop(Local(), evals=5), make_loop(Local(), evals=5, folder=Path(tempfile.mkdtemp()))
    beside.reference = FAST
    plain.run()
    beside.run()
    assert [t.proposed for t in plain.state.trials] == [t.proposed for t in beside.state.trials]
    (found,) = beside.state.references
    assert found.phase == "confirm" and found.against == beside.state.best and found.candidate_ms != found.incumbent_ms
    assert not beside.state.leases and beside.state.evals == 5
    assert "than the plan compared with" in compared(found)


@dataclass
class Slow:
    """Points in turn, each thought about until the device has nothing to do; remembers how many were evaluated when it
    was asked."""

    is_done: Callable[[], bool]
    evals: list[int] = field(default_factory=list)
    name: str = "slow"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        while not self.is_done():
            time.sleep(0.001)
        self.evals.append(context.state.evals)
        value = (2, 3, 4, 6, 12)[len(self.evals) - 1] if len(self.evals) <= 5 else None
        return [] if value is None else [Suggestion(self.name, {"warps": value})]


@pytest.mark.parametrize("simulated", [False, True])
def test_a_real_device_does_not_wait_for_several_proposals(make_loop: MakeLoop, simulated: bool) -> None:
    """A simulated one does, so that a run can be repeated."""
    proposer = Slow(lambda: all(queue.ready or not queue.busy for queue in loop._device_queues))
    loop = make_loop(proposer, SimulatedBackend("h200", noise=Noise("quiet")))
    loop.gate.ahead = 5
    assert loop.state.run is not None
    loop.state.run = loop.state.run.model_copy(update={"simulated": simulated})
    loop.run()
    assert proposer.evals[:5] == sorted(proposer.evals[:5]) and (proposer.evals[4] > 0) == (not simulated)
