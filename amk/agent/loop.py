"""The search as a state machine: propose, gate, screen, race, confirm, decide; every step is journaled before the next.

Resume: the state is a fold of the journal, so a new process continues the open proposal at the first step that is not
written down. What was measured is never measured again; what was not acknowledged is measured afresh.
"""

from __future__ import annotations

import secrets
import time
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
from amk.agent.measure import ROUNDS, STEPS, Backend, Fault, Job, Samples
from amk.agent.propose.base import Context, History, Proposer, Suggestion
from amk.agent.space import OutsideSpaceError, Space
from amk.agent.state import START, State, Trial
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError, Diagnostic, Exit

RETRIES = 2
"""Attempts of one phase before a proposal is given up as the cause."""

LOST = 8
"""Times that a driver may end during one phase before the proposal is suspected of it."""

FRUITLESS = 400
"""Proposals in a row that no GPU needed to see, after which the space counts as exhausted."""

SEED_BITS = 62


class DeviceLostError(Exception):
    """The device failed its canaries or is gone; nothing more can be measured on it."""


@dataclass
class Loop:
    """One session of one run. `inbox` yields suggestions from outside; `watch` is told after every event."""

    journal: Journal
    space: Space
    gate: Gate
    backend: Backend
    proposer: Proposer
    inbox: Callable[[], Sequence[Suggestion]] = tuple
    watch: Callable[[State], None] = lambda state: None
    judges_unchanged: Callable[[], None] = lambda: None
    history: History = field(init=False)
    _fruitless: int = 0
    _silent: bool = False
    _queue: list[Suggestion] = field(default_factory=list)
    _ready: dict[int, Ready] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.history = History(self.space)

    @property
    def state(self) -> State:
        return self.journal.state

    def run(self) -> str:
        """Search until a budget or the space ends; returns the reason. Raises AMK707 when the device is lost."""
        self._settle_lost()
        try:
            if self.state.calibrated is None:
                self._calibrate()
            while (reason := self._stop_reason()) is None:
                self._one()
        except DeviceLostError as error:
            self.note(Quarantined(device=self.backend.device, reason=str(error)[:500]))
            message = f"{self.backend.device} is quarantined: {error}"
            help_line = "the run is intact; --resume continues it on a working GPU"
            raise AmkError(Diagnostic("AMK707", message, help=help_line), Exit.NO_GPU) from error
        self.note(Finished(reason=reason))
        return reason

    def note(self, event: AnyEvent) -> None:
        self.journal.append(event)
        self.watch(self.state)

    def _stop_reason(self) -> str | None:
        if self.state.open_trials:
            return None
        if self._silent:
            return "the space is exhausted: the proposer has nothing new"
        if self._fruitless >= FRUITLESS:
            return f"the space is exhausted: {FRUITLESS} proposals in a row were duplicates or refused"
        return budget.spent_out(self.state.limits, self.state, self.journal.elapsed)

    def _settle_lost(self) -> None:
        budget.settle_lost(self.journal)
        for lease in list(self.state.leases.values()):
            self.note(
                Faulted(index=lease.index, phase=lease.phase, attempt=lease.attempt, seconds=0.0, fault="lost",
                        detail="the driver ended before the result was written")
            )  # fmt: skip

    def _one(self) -> None:
        """Advance the open proposal, or make one."""
        if self.state.open_trials:
            self._advance(self.state.open_trials[0])
            return
        suggestion = self._next()
        if suggestion is None:
            self._silent = True
            return
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
            return
        self._advance(self.state.trials[index])

    def _next(self) -> Suggestion | None:
        if not self._queue:
            self._queue = [s for s in self.inbox() if s.handle not in self.state.handles]
        if not self._queue:
            self._queue = list(self.proposer.ask(self.context()))
        return self._queue.pop(0) if self._queue else None

    def context(self) -> Context:
        self.history.update(self.state)
        run = self.state.run
        assert run is not None
        return Context(self.space, self.state, self.history, self.gate.workshop, run.seed, self.journal)

    def _advance(self, trial: Trial) -> None:
        ready = self._gate(trial)
        if ready is None:
            self._fruitless += 1
            return
        self._fruitless = 0
        phases: tuple[Phase, ...] = ("screen", "race", "confirm")
        for phase in phases:
            measured = trial.measured.get(phase) or self._measure(trial.index, phase, ready)
            if isinstance(measured, Fault):
                self._decide_fault(trial, measured)
                return
            ruling = self._rule(phase, measured, trial.index)
            if not ruling.passed:
                self._decide(trial, "rejected", f"{phase}: {ruling.reason}", ruling)
                return
        self._decide(trial, "kept", ruling.reason, ruling)
        self._ready = {trial.index: ready}

    def _gate(self, trial: Trial) -> Ready | None:
        settings = self.space.parse(trial.proposed.settings)
        seen = self.state.by_key | {self._start_key(): START}
        if trial.gated is not None and trial.gated.verdict == "passed":
            seen = {k: i for k, i in seen.items() if i != trial.index}
        gated, ready = self.gate.admit(trial.index, settings, seen)
        if trial.gated is None or ready is None:
            self.note(gated)
        return ready

    def _start_key(self) -> str:
        made = self.gate.workshop.make(self.space.start)
        assert isinstance(made, Candidate)
        return made.key

    def _rule(self, phase: Phase, measured: Measured, index: int) -> decide.Ruling:
        mad = self.state.calibrated.mad if self.state.calibrated else 0.0
        if phase == "screen":
            return decide.screen(measured.log_ratios, mad)
        self.judges_unchanged()
        ruling = decide.race(measured.log_ratios, mad, ROUNDS[phase], index)
        run = self.state.run
        assert run is not None
        even = decide.everywhere(measured.candidate_ms, measured.incumbent_ms, run.positions, mad)
        return ruling if even.passed else replace(ruling, passed=False, reason=even.reason)

    def _measure(self, index: int, phase: Phase, ready: Ready) -> Measured | Fault:
        """Lease the device, measure, settle the lease. Only the last attempt's fault is returned."""
        run = self.state.run
        assert run is not None
        incumbent, last = self.incumbent(), Fault("lost", "the driver ended too often while it was measured")
        before = [] if index == START else [f for f in self.state.trials[index].faults if f.phase == phase]
        failed = sum(f.fault != "lost" for f in before)
        tries = RETRIES - failed if len(before) - failed < LOST else 0
        for attempt in range(len(before) + 1, len(before) + 1 + tries):
            job = Job(index, phase, attempt, ROUNDS[phase], STEPS, run.positions, secrets.randbits(SEED_BITS))
            device = self.backend.device
            self.note(LeaseReserved(index=index, phase=phase, attempt=attempt, device=device, seconds=0.0))
            began = time.monotonic()
            result = self.backend.measure(job, incumbent, ready)
            spent = round(max(result.seconds, time.monotonic() - began), 6)
            if isinstance(result, Samples):
                measured = Measured(
                    index=index, phase=phase, attempt=attempt, seconds=spent, log_ratios=result.log_ratios,
                    candidate_ms=result.median_ms("b"), incumbent_ms=result.median_ms("a"),
                )  # fmt: skip
                self.note(measured)
                return measured
            self.note(
                Faulted(index=index, phase=phase, attempt=attempt, seconds=spent, fault=result.kind,
                        detail=result.detail[:1000])
            )  # fmt: skip
            if result.kind == "device_lost":
                raise DeviceLostError(result.detail)
            if result.suspect:
                return result
            last = result
        return last

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
        self._ready = {best: ready}
        return ready

    def settings_of(self, index: int) -> Settings:
        return self.space.start if index == START else self.space.parse(self.state.trials[index].proposed.settings)

    def _calibrate(self) -> None:
        """The incumbent against itself: how far apart equal programs look on this device."""
        session = self.state.session
        assert session is not None
        result = self._measure(START, "calibrate", self.incumbent())
        if isinstance(result, Fault):
            raise DeviceLostError(f"the incumbent itself cannot be measured: {result.kind}: {result.detail}")
        mad = decide.spread(result.log_ratios)
        self.note(Calibrated(session=session.session, mad=mad, incumbent_ms=result.incumbent_ms))

    def _decide(self, trial: Trial, outcome: Outcome, reason: str, ruling: decide.Ruling) -> None:
        score = self.state.best_score - ruling.log_gain
        self.note(
            Decided(index=trial.index, outcome=outcome, reason=reason[:1000], log_gain=ruling.log_gain,
                    bound=ruling.bound, score=score)
        )  # fmt: skip

    def _decide_fault(self, trial: Trial, fault: Fault) -> None:
        outcome: Outcome = "quarantined" if fault.suspect else "failed"
        self.note(Decided(index=trial.index, outcome=outcome, reason=f"{fault.kind}: {fault.detail}"[:1000]))
