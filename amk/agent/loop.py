"""The search as a state machine: propose, gate, screen, race, confirm, decide; every step is journaled before the next.

Devices do not wait: while they measure, the driver proposes and gates until AHEAD proposals more than devices are open.
A proposal follows from the decisions before it, never from how long something took, so with one device a run repeats.

Resume: the state is a fold of the journal, so a new process continues the open proposals at the first step that is not
written down. What was measured is never measured again; what was not acknowledged is measured afresh.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from amk.agent import budget, decide
from amk.agent.candidate import Candidate, Impossible
from amk.agent.events import (
    AnyEvent,
    Calibrated,
    Decided,
    Faulted,
    Finished,
    Gated,
    LeaseReserved,
    Measured,
    Outcome,
    Phase,
    Proposed,
    Quarantined,
)
from amk.agent.gate import Gate, Ready
from amk.agent.journal import Journal
from amk.agent.lanes import Lane, finished
from amk.agent.measure import ROUNDS, STEPS, Backend, Fault, Job
from amk.agent.propose.base import Context, History, Proposer, Suggestion
from amk.agent.state import START, State, Trial
from amk.planner.settings import Settings
from amk.planner.space import OutsideSpaceError, Space
from amk.report.diagnostic import AmkError, Diagnostic, Exit

RETRIES = 2
"""Attempts of one phase before a proposal is given up as the cause."""

LOST = 8
"""Times that a driver may end during one phase before the proposal is suspected of it."""

FRUITLESS = 400
"""Proposals in a row that no GPU needed to see, after which the space counts as exhausted."""

SEED_BITS = 62

AHEAD = 1
"""Gated proposals that wait for a device, so that none idles while the next is validated and compiled."""

PHASES: tuple[Phase, ...] = ("screen", "race", "confirm")


@dataclass
class Loop:
    """One session of one run. `inbox` yields suggestions from outside; `watch` is told after every event."""

    journal: Journal
    space: Space
    gate: Gate
    backends: Sequence[Backend]
    proposer: Proposer
    inbox: Callable[[], Sequence[Suggestion]] = tuple
    watch: Callable[[State], None] = lambda state: None
    judges_unchanged: Callable[[], None] = lambda: None
    history: History = field(init=False)
    _fruitless: int = 0
    _silent_at: int | None = None
    _queue: list[Suggestion] = field(default_factory=list)
    _ready: dict[int, Ready] = field(default_factory=dict)
    _lanes: list[Lane] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = History(self.space)

    @property
    def state(self) -> State:
        return self.journal.state

    def run(self) -> str:
        """Search until a budget or the space ends; returns the reason. Raises AMK707 when no device is left."""
        self._settle_lost()
        self._lanes = [Lane(backend) for backend in self.backends]
        try:
            reason = self._search()
        finally:
            for lane in self._lanes:
                lane.end()
        self.note(Finished(reason=reason))
        return reason

    def note(self, event: AnyEvent) -> None:
        self.journal.append(event)
        self.watch(self.state)

    def _search(self) -> str:
        while True:
            self._assign()
            self._fill()
            self._assign()
            if not any(lane.busy for lane in self._lanes):
                return self._stop_reason() or "the space is exhausted: the proposer has nothing new"
            for lane in finished(self._lanes):
                self._take(lane)

    def _stop_reason(self) -> str | None:
        """Why nothing more is proposed."""
        if self._fruitless >= FRUITLESS:
            return f"the space is exhausted: {FRUITLESS} proposals in a row were duplicates or refused"
        return budget.spent_out(self.state.limits, self.state, self.journal.elapsed)

    def _settle_lost(self) -> None:
        budget.settle_lost(self.journal)
        for lease in list(self.state.leases.values()):
            self.note(
                Faulted(index=lease.index, phase=lease.phase, attempt=lease.attempt, seconds=0.0, fault="lost",
                        detail="the driver ended before the result was written", device=lease.device)
            )  # fmt: skip

    def _fill(self) -> None:
        """Propose and gate until enough is open; what a resumed run finds open is gated again first."""
        for trial in self.state.open_trials:
            if trial.index not in self._ready:
                self._admit(trial)
        while len(self.state.open_trials) < len(self._lanes) + AHEAD and self._stop_reason() is None:
            if not self._propose():
                return

    def _propose(self) -> bool:
        """One proposal, gated; False if there is nothing new until more is decided."""
        suggestion = self._next()
        if suggestion is None:
            return False
        try:
            settings = self.space.parse(suggestion.settings)
        except OutsideSpaceError as error:
            settings, outside = self.space.start, str(error)
        else:
            outside = ""
        index = len(self.state.trials)
        proposed = Proposed(
            index=index, proposer=suggestion.proposer, settings=self.space.point(settings), why=suggestion.why[:1000],
            handle=suggestion.handle,
        )  # fmt: skip
        self.note(proposed)
        if outside:
            self._fruitless += 1
            self.note(Gated(index=index, verdict="impossible", codes=("outside_space",), detail=outside[:1000]))
        else:
            self._admit(self.state.trials[index])
        return True

    def _next(self) -> Suggestion | None:
        if not self._queue:
            self._queue = [s for s in self.inbox() if s.handle not in self.state.handles]
        closed = sum(trial.closed for trial in self.state.trials)
        if not self._queue and self._silent_at != closed:
            self._queue = list(self.proposer.ask(self.context()))
            self._silent_at = None if self._queue else closed
        return self._queue.pop(0) if self._queue else None

    def context(self) -> Context:
        self.history.update(self.state)
        run = self.state.run
        assert run is not None
        return Context(self.space, self.state, self.history, self.gate.workshop, run.seed, self.journal)

    def _admit(self, trial: Trial) -> None:
        settings = self.space.parse(trial.proposed.settings)
        seen = self.state.by_key | {self._start_key(): START}
        if trial.gated is not None:
            seen = {k: i for k, i in seen.items() if i != trial.index}
        gated, ready = self.gate.admit(trial.index, settings, seen)
        if trial.gated is None or ready is None:
            self.note(gated)
        if ready is None:
            self._fruitless += 1
        else:
            self._ready[trial.index], self._fruitless = ready, 0

    def _start_key(self) -> str:
        made = self.gate.workshop.make(self.space.start)
        assert isinstance(made, Candidate)
        return made.key

    def _assign(self) -> None:
        """Give every idle lane its calibration, or the next measurement that an open proposal needs."""
        for lane in self._lanes:
            while not lane.busy:
                if lane.backend.device not in self.state.calibrated:
                    self._start(lane, START, "calibrate", lane.failures + 1)
                    continue
                trial = self._trial_for(lane)
                if trial is None:
                    break
                lane.trial = trial.index
                phase = self._next_phase(trial)
                if phase is not None and (attempt := self._attempt(trial, phase)) is not None:
                    self._start(lane, trial.index, phase, attempt)

    def _trial_for(self, lane: Lane) -> Trial | None:
        """The lane's own open proposal, else the oldest that no lane has; none is begun once the time is up."""
        if lane.trial is not None and not self.state.trials[lane.trial].closed:
            return self.state.trials[lane.trial]
        taken = {other.trial for other in self._lanes}
        late = budget.out_of_time(self.state.limits, self.journal.elapsed) is not None
        waiting = (t for t in self.state.open_trials if t.index in self._ready and t.index not in taken)
        return next((t for t in waiting if t.evaluated or not late), None)

    def _next_phase(self, trial: Trial) -> Phase | None:
        """The measurement that `trial` needs next; None if it needed none and is decided now.

        What was won against an incumbent that has been replaced since is measured again; what was lost stays lost.
        """
        for phase in PHASES:
            measured = trial.measured.get(phase)
            if measured is None:
                return phase
            ruling = self._rule(phase, measured, trial.index)
            if not ruling.passed:
                self._decide(trial, "rejected", f"{phase}: {ruling.reason}", ruling, measured.against)
                return None
            if phase != "screen" and measured.against != self.state.best:
                return phase
        self._decide(trial, "kept", ruling.reason, ruling, self.state.best)
        return None

    def _attempt(self, trial: Trial, phase: Phase) -> int | None:
        """The number of the next attempt; None if there were too many, and then the proposal is decided."""
        before = [fault for fault in trial.faults if fault.phase == phase]
        failed = [fault for fault in before if fault.fault != "lost"]
        if len(failed) >= RETRIES:
            self._decide_fault(trial, Fault(failed[-1].fault, failed[-1].detail))
        elif len(before) - len(failed) >= LOST:
            self._decide_fault(trial, Fault("lost", "the driver ended too often while it was measured"))
        else:
            return len(before) + 1
        return None

    def _start(self, lane: Lane, index: int, phase: Phase, attempt: int) -> None:
        """Lease the device and begin."""
        run = self.state.run
        assert run is not None
        incumbent, best = self.incumbent(), self.state.best
        job = Job(index, phase, attempt, ROUNDS[phase], STEPS, run.positions, secrets.randbits(SEED_BITS))
        self.note(
            LeaseReserved(index=index, phase=phase, attempt=attempt, device=lane.backend.device, seconds=0.0)
        )  # fmt: skip
        lane.start(job, best, incumbent, incumbent if index == START else self._ready[index])

    def _take(self, lane: Lane) -> None:
        """Write down what a lane measured and settle its lease."""
        job, result, seconds = lane.take()
        if isinstance(result, Fault):
            self._fault(lane, job, result, seconds)
            return
        measured = Measured(
            index=job.index, phase=job.phase, attempt=job.attempt, seconds=seconds, log_ratios=result.log_ratios,
            candidate_ms=result.median_ms("b"), incumbent_ms=result.median_ms("a"), against=lane.against,
            device=lane.backend.device,
        )  # fmt: skip
        self.note(measured)
        if job.index == START:
            session = self.state.session
            assert session is not None
            self.note(
                Calibrated(session=session.session, device=lane.backend.device, mad=decide.spread(result.log_ratios),
                           incumbent_ms=measured.incumbent_ms)
            )  # fmt: skip

    def _fault(self, lane: Lane, job: Job, fault: Fault, seconds: float) -> None:
        self.note(
            Faulted(index=job.index, phase=job.phase, attempt=job.attempt, seconds=seconds, fault=fault.kind,
                    detail=fault.detail[:1000], device=lane.backend.device)
        )  # fmt: skip
        if fault.kind == "device_lost":
            self._quarantine(lane, fault.detail)
        elif job.index == START:
            lane.failures += 1
            if fault.suspect or lane.failures >= RETRIES:
                self._quarantine(lane, f"the incumbent itself cannot be measured: {fault.kind}: {fault.detail}")
        elif fault.suspect:
            self._decide_fault(self.state.trials[job.index], fault)

    def _quarantine(self, lane: Lane, reason: str) -> None:
        """Go on with the other devices; AMK707 if this was the last."""
        self.note(Quarantined(device=lane.backend.device, reason=reason[:500]))
        self._lanes.remove(lane)
        lane.end()
        if not self._lanes:
            message = f"{lane.backend.device} is quarantined: {reason}"
            help_line = "the run is intact; --resume continues it on a working GPU"
            raise AmkError(Diagnostic("AMK707", message, help=help_line), Exit.NO_GPU)

    def _rule(self, phase: Phase, measured: Measured, index: int) -> decide.Ruling:
        mad = max((calibrated.mad for calibrated in self.state.calibrated.values()), default=0.0)
        if phase == "screen":
            return decide.screen(measured.log_ratios, mad)
        self.judges_unchanged()
        ruling = decide.race(measured.log_ratios, mad, ROUNDS[phase], index)
        run = self.state.run
        assert run is not None
        even = decide.everywhere(measured.candidate_ms, measured.incumbent_ms, run.positions, mad)
        return ruling if even.passed else replace(ruling, passed=False, reason=even.reason)

    def incumbent(self) -> Ready:
        """The best so far, gated again in this process: what ran an hour ago still has to pass today."""
        best = self.state.best
        if best in self._ready:
            return self._ready[best]
        made = self.gate.workshop.make(self.settings_of(best))
        if isinstance(made, Impossible):
            raise AmkError(Diagnostic("AMK011", f"the schedule to start from cannot be planned: {made.detail}"))
        gated, ready = self.gate.judge(best, made)
        if ready is None:
            code = gated.codes[0] if gated.codes else "AMK901"
            message = f"the schedule to start from is refused ({gated.verdict}): {gated.detail}"
            raise AmkError(Diagnostic(code, message), Exit.UNSAFE if gated.verdict == "unsafe" else Exit.UNKNOWN)
        self._ready[best] = ready
        return ready

    def settings_of(self, index: int) -> Settings:
        return self.space.start if index == START else self.space.parse(self.state.trials[index].proposed.settings)

    def _decide(self, trial: Trial, outcome: Outcome, reason: str, ruling: decide.Ruling, against: int) -> None:
        score = self.state.score_of(against) - ruling.log_gain
        self._close(
            Decided(index=trial.index, outcome=outcome, reason=reason[:1000], log_gain=ruling.log_gain,
                    bound=ruling.bound, score=score)
        )  # fmt: skip

    def _decide_fault(self, trial: Trial, fault: Fault) -> None:
        outcome: Outcome = "quarantined" if fault.suspect else "failed"
        self._close(Decided(index=trial.index, outcome=outcome, reason=f"{fault.kind}: {fault.detail}"[:1000]))

    def _close(self, decided: Decided) -> None:
        """Write a decision; only the incumbent's program is kept beside those that are open."""
        self.note(decided)
        open_now = {trial.index for trial in self.state.open_trials} | {self.state.best}
        self._ready = {index: ready for index, ready in self._ready.items() if index in open_now}
