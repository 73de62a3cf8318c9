"""The search as a state machine: propose, gate, pilot, paired test, confirm, decide. Each is journaled first.

Devices do not wait. While they measure, the driver proposes and the gate judges, until `gate.ahead` proposals wait for
a device. A judgement is taken when a device turns to its proposal. So a proposal follows from the decisions before it
and never from how long something took: with one device a run repeats.

A paired test costs many pilots. What passes the pilot waits until `gate.patience` later ones brought nothing better,
while proposers already go on from the best of those that wait.

The state is a fold of the journal, so a new process resumes the open proposals at the first step that is not written
down. What was measured is never measured again. What was not acknowledged is measured afresh.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from amk.agent.decide import calibration
from amk.agent.decide import keep as decide
from amk.agent.decide.headroom import nothing_to_rank
from amk.agent.decide.history import History
from amk.agent.decide.neighbourhood import Neighbourhood, ended
from amk.agent.decide.rulings import MOST_ENDS, PHASES, RETRIES, attempt, due, early_ends, has_lost, promise, rule
from amk.agent.device.measure import ROUNDS, Backend, Fault, Job, steps_of
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.design import Design
from amk.agent.gate.gate import Gate, Judged, Ready
from amk.agent.gate.pipeline import Pipeline
from amk.agent.journal import budget
from amk.agent.journal.events import (
    AnyEvent,
    Decided,
    Finished,
    Gated,
    LeaseReserved,
    Measured,
    Outcome,
    Phase,
    Quarantined,
)
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import REFERENCE, START, State, Trial
from amk.agent.journal.store import Journal
from amk.agent.propose.base import Closing, Context, Proposer
from amk.agent.run.device_queue import DeviceQueue, finished
from amk.agent.run.suggestions import Queue, parsed, written
from amk.planner.settings import Settings
from amk.planner.space import Space
from amk.report.diagnostic import AmkError, Diagnostic, Exit

FRUITLESS = 400
"""Proposals in a row that no GPU needed to see, after which a search ends."""

SEED_BITS = 62


@dataclass
class Loop:
    """One session of one run. `inbox` yields suggestions from outside; `watch` is told after every event, `asks` when a
    proposer is asked, which may think for a minute, and when it has answered."""

    journal: Journal
    space: Space
    gate: Gate
    backends: Sequence[Backend]
    proposer: Proposer
    inbox: Callable[[], Sequence[Suggestion]] = tuple
    watch: Callable[[State], None] = lambda state: None
    asks: Callable[[bool], None] = lambda begins: None
    judges_unchanged: Callable[[], None] = lambda: None
    reference: Settings | None = None
    """A plan that the best found is compared with at the end; nothing that is proposed or decided depends on it."""
    history: History = field(init=False)
    pipeline: Pipeline = field(init=False)
    neighbourhood: Neighbourhood = field(default_factory=Neighbourhood)
    _fruitless: int = 0
    _queue: Queue = field(default_factory=Queue)
    _device_queues: list[DeviceQueue] = field(default_factory=list)
    _begun: Future[Judged] | None = None
    """The judgement of what the session starts from."""

    def __post_init__(self) -> None:
        self.history = History(self.space)
        self.pipeline = Pipeline(self.gate)

    @property
    def state(self) -> State:
        return self.journal.state

    def run(self) -> str:
        """Search until a budget or the space ends; returns the reason. Raises AMK707 when no device is left."""
        budget.settle_lost(self.journal)
        budget.settle_leases(self.note, self.state)
        self._device_queues = [DeviceQueue(backend) for backend in self.backends]
        try:
            reason = self._search()
            self._look_around(last=True)
            self._compare()
        finally:
            if isinstance(self.proposer, Closing):
                self.proposer.close()
            for queue in self._device_queues:
                queue.end()
            self.gate.close()
        self.note(Finished(reason=(reason := ended(reason, self.state.surveyed))))
        return reason

    def note(self, event: AnyEvent) -> None:
        self.journal.append(event)
        self.watch(self.state)

    def _search(self) -> str:
        self._begun = self.gate.begin(self.state.best, self.design_of(self.state.best))
        for trial in self.state.open_trials:  # of an earlier session, behind what they are compared with
            self._admit(trial)
        while True:
            self._assign()
            self._fill()
            self._assign()
            if any(queue.busy for queue in self._device_queues):
                for queue in finished(self._device_queues, self.pipeline.futures):
                    self._take(queue)
                self._assign()  # the device does not wait for the look
                self._look_around()
            elif self._late or self._full or not self.pipeline.futures:
                return self._stop_reason() or "the proposer has nothing new"

    def _stop_reason(self) -> str | None:
        """Why nothing more is proposed."""
        if self._fruitless >= FRUITLESS:
            return f"{FRUITLESS} proposals in a row were duplicates or refused"
        over = budget.spent_out(self.state.limits, self.state, self.journal.elapsed)
        return over or nothing_to_rank(self.state)

    @property
    def _late(self) -> bool:
        return budget.out_of_time(self.state.limits, self.journal.elapsed) is not None

    @property
    def _full(self) -> bool:
        """Whether as many were evaluated as may be. A limit that was lowered leaves open what waits."""
        limit = self.state.limits.evals
        return limit is not None and self.state.evals >= limit

    def _look_around(self, last: bool = False) -> None:
        """Write down, once for every best, that nothing near it is open; at last, what is."""
        found = self.neighbourhood.look(self.context(), last) if last or not self.state.exhausted else None
        if found is not None and found != self.state.surveyed:
            self.note(found)

    def _fill(self) -> None:
        """Propose until enough waits for a device. What waits for its paired test holds up nothing. A real device waits
        for one proposal at most; a simulated one is asked in a fixed order, so that a run can be repeated."""
        wanted = self.gate.ahead + len(self._device_queues) - 1
        while self._queued < wanted and self._stop_reason() is None:
            if not self._propose():
                return
            if self.state.run is not None and not self.state.run.simulated:
                for queue in [queue for queue in self._device_queues if queue.ready]:
                    self._take(queue)
                self._assign()

    @property
    def _queued(self) -> int:
        """Open proposals that no device has turned to."""
        leased = {index for index, *_ in self.state.leases}
        return sum(not trial.evaluated and trial.index not in leased for trial in self.state.open_trials)

    def _propose(self) -> bool:
        """One proposal, gated; False if there is nothing new until more is decided."""
        suggestion = self._queue.next(self.state, self.inbox, self._ask)
        if suggestion is None:
            return False
        design, outside = parsed(self.space, suggestion)
        index, candidate = len(self.state.trials), self.gate.workshop.make(design)
        asked = suggestion.parent
        parent = asked if asked is not None and START <= asked < index else self.state.best
        base = self.design_of(parent)
        self.note(written(self.space, index, suggestion, (design, candidate, outside), parent, base))
        if outside:
            self.note(Gated(index=index, verdict="impossible", codes=("outside_space",), detail=outside[:1000]))
            self._count(self.state.trials[index], False)
        else:
            self._admit(self.state.trials[index])
        return True

    def _ask(self) -> Sequence[Suggestion]:
        self.asks(True)
        try:
            return self.proposer.ask(self.context())
        finally:
            self.asks(False)

    def _count(self, trial: Trial, passed: bool) -> None:
        """Count proposals in a row that led nowhere; what comes from outside never ends a search."""
        if passed:
            self._fruitless = 0
        elif trial.proposed.handle is None:
            self._fruitless += 1

    def context(self) -> Context:
        self.history.update(self.state)
        run = self.state.run
        assert run is not None
        known = self.space, self.state, self.history, self.gate.workshop
        return Context(*known, run.seed, self.journal, self.neighbourhood, self.gate.is_safe)

    def _admit(self, trial: Trial) -> None:
        design = self.design_of(trial.index)
        looked = self.gate.look(trial.index, design, self._kernels())
        if isinstance(looked, Candidate):
            self.pipeline.enter(trial.index, looked)
            if self.gate.immediate:
                self._settle(trial)
        else:
            self._judged(trial, (looked, None))

    def _settle(self, trial: Trial) -> None:
        """Take the judgement, waited for."""
        self._judged(trial, self.pipeline.take(trial.index))

    def _judged(self, trial: Trial, judged: Judged) -> None:
        gated, ready = self.pipeline.told_apart(trial.index, judged, self._kernels())
        if trial.gated is None or ready is None:
            self.note(gated)
        self._count(trial, ready is not None)

    def _kernels(self) -> dict[str, int]:
        """Proposals, and the start, by kernel."""
        candidate = self.gate.workshop.make(self.space.start)
        assert isinstance(candidate, Candidate)
        return self.state.by_key | {candidate.key: START}

    def _assign(self) -> None:
        """Give every idle device what it needs next."""
        for queue in self._device_queues:
            while not queue.busy:
                if queue.backend.device not in self.state.calibrated:
                    self._calibrate(queue)
                    continue
                trial = self._trial_for(queue)
                if trial is None:
                    break
                if self.pipeline.pending(trial.index):  # measured in an earlier session
                    self._settle(trial)
                phase = None if trial.closed else self._next_phase(trial)
                if phase is not None and (number := self._attempt(trial, phase)) is not None:
                    self._start(queue, trial.index, phase, number)

    def _calibrate(self, queue: DeviceQueue) -> None:
        if (known := calibration.recent_calibration(self.state, queue.backend)) is not None:
            self.note(known)
        else:
            self._start(queue, START, "calibrate", queue.failures + 1)

    def _trial_for(self, queue: DeviceQueue) -> Trial | None:
        """The next of the open proposals that no other device has; none is begun once the time is up.

        First what lost its pilot, to be written down; then what needs its confirmation, then what was not looked at,
        until the best that passed its pilot has waited for long, or the time is nearly up.
        """
        taken = {other.job.index for other in self._device_queues if other.busy and other.job is not None}
        waiting = [t for t in self.state.open_trials if t.index not in taken]
        tested = [t for t in waiting if has_lost(self.state, t)] or [t for t in waiting if "paired test" in t.measured]
        promising = sorted(
            (t for t in waiting if "pilot" in t.measured and t not in tested), key=partial(promise, self.state)
        )
        if tested or self._late:
            return tested[0] if tested else None
        last = bool(promising) and budget.closing(self.state.limits, self.journal.elapsed)
        fresh = None if last or due(self.state, promising, self.gate.patience) else self._fresh(queue, waiting)
        return fresh or (promising[0] if promising else None)

    def _fresh(self, queue: DeviceQueue, waiting: Sequence[Trial]) -> Trial | None:
        """The oldest proposal that was not measured and passes the gate. Judgements are waited for in their order,
        unless another device is at work: then only those are taken that are there.

        What follows is proposed once the device is at work, which does not wait for proposers either.
        """
        others = any(other.busy for other in self._device_queues if other is not queue)
        for trial in waiting:
            if trial.measured or (self._full and not trial.evaluated):
                continue
            if self.pipeline.pending(trial.index):
                if others and not self.pipeline.is_done(trial.index):
                    continue
                self._settle(trial)
            if not trial.closed:
                return trial
        return None

    def _next_phase(self, trial: Trial) -> Phase | None:
        """The measurement that `trial` needs next; None if it needed none and is decided now.

        What was won against an incumbent that has been replaced since is measured again; what was lost stays lost.
        A pilot is not repeated: what it showed is compared with what the new incumbent gained.
        """
        for phase in PHASES:
            measured = trial.measured.get(phase)
            if measured is None:
                return phase
            ruling = self._rule(phase, measured, trial.index)
            if not ruling.passed:
                against = self.state.best if phase == "pilot" else measured.against
                self._decide(trial, "rejected", f"{phase}: {ruling.reason}", ruling, against)
                return None
            if phase != "pilot" and measured.against != self.state.best:
                return phase
        self._decide(trial, "kept", ruling.reason, ruling, self.state.best)
        return None

    def _attempt(self, trial: Trial, phase: Phase) -> int | None:
        """The number of the next attempt; None if there were too many, and then the proposal is decided."""
        found = attempt(trial, phase)
        if isinstance(found, Fault):
            self._decide_fault(trial, found)
            return None
        return found

    def _start(self, queue: DeviceQueue, index: int, phase: Phase, number: int) -> None:
        """Lease the device and begin."""
        run = self.state.run
        assert run is not None
        incumbent, best = self.incumbent(), self.state.best
        known = self.state.calibrated.get(queue.backend.device)
        steps = steps_of(phase, None if known is None else float(np.mean(known.incumbent_ms)))
        ends = early_ends(self.state)
        job = Job(index, phase, number, ROUNDS[phase], steps, run.positions, secrets.randbits(SEED_BITS), *ends)
        self.note(LeaseReserved(index=index, phase=phase, attempt=number, device=queue.backend.device, seconds=0.0))
        queue.start(job, best, incumbent, incumbent if index == START else self.pipeline.ready[index])

    def _compare(self) -> None:
        """Measure the reference against the best, in a fresh process, on fresh inputs."""
        candidate = self.gate.workshop.make(self.reference) if self.reference is not None else None
        ready = self.gate.submit(REFERENCE, candidate).result()[1] if isinstance(candidate, Candidate) else None
        if ready is not None:
            session = self.state.session
            self.pipeline.ready[REFERENCE] = ready
            self._start(self._device_queues[0], REFERENCE, "confirm", session.session if session is not None else 1)
            self._take(self._device_queues[0])

    def _take(self, queue: DeviceQueue) -> None:
        """Write down what a device measured and settle its lease."""
        job, result, seconds = queue.take()
        if isinstance(result, Fault):
            self._fault(queue, job, result, seconds)
            return
        if job.index == START and (uneven := calibration.uneven(result.log_ratios)):
            self._fault(queue, job, Fault("uneven", uneven), seconds)
            return
        self.note(measured := queue.measured(job, result, seconds))
        if job.index == START:
            self.note(calibration.calibrated(self.state, queue.backend, measured, result.log_ratios))

    def _fault(self, queue: DeviceQueue, job: Job, fault: Fault, seconds: float) -> None:
        self.note(queue.faulted(job, fault, seconds))
        if fault.kind == "device_lost":
            self._quarantine(queue, fault.detail)
        elif job.index == START:
            queue.failures += 1
            if fault.suspect or queue.failures >= (MOST_ENDS if fault.kind == "lost" else RETRIES):
                self._quarantine(queue, f"the incumbent itself cannot be measured: {fault.kind}: {fault.detail}")
        elif fault.suspect and job.index >= 0:
            self._decide_fault(self.state.trials[job.index], fault)

    def _quarantine(self, queue: DeviceQueue, reason: str) -> None:
        """Go on with the other devices; AMK707 if this was the last."""
        self.note(Quarantined(device=queue.backend.device, reason=reason[:500]))
        self._device_queues.remove(queue)
        queue.end()
        if not self._device_queues:
            message = f"{queue.backend.device} is quarantined: {reason}"
            help_line = "the run is intact; --resume continues it on a working GPU"
            raise AmkError(Diagnostic("AMK707", message, help=help_line), Exit.NO_GPU)

    def _rule(self, phase: Phase, measured: Measured, index: int) -> decide.Ruling:
        if phase != "pilot":
            self.judges_unchanged()
        return rule(self.state, phase, measured, index)

    def incumbent(self) -> Ready:
        """The best so far, gated again in this process: what ran an hour ago still has to pass today."""
        best = self.state.best
        if best in self.pipeline.ready:
            return self.pipeline.ready[best]
        begun, self._begun = self._begun, None
        certain = self.gate.certain(begun or self.gate.begin(best, self.design_of(best)))
        return self.pipeline.ready.setdefault(best, certain)

    def settings_of(self, index: int) -> Settings:
        return self.design_of(index).settings

    def design_of(self, index: int) -> Design:
        if index == START:
            return Design(self.space.start)
        proposed = self.state.trials[index].proposed
        return Design(self.space.parse(proposed.settings), proposed.edits)

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
        self.pipeline.keep({trial.index for trial in self.state.open_trials} | {self.state.best})
