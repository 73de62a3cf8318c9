"""The state of a run: a fold of its events, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from amk.agent.journal.events import (
    Ablation,
    AnyEvent,
    Asked,
    Calibrated,
    Decided,
    Faulted,
    Finished,
    Gated,
    LeaseReserved,
    Limits,
    LlmReserved,
    LlmSettled,
    Measured,
    Noted,
    Phase,
    Proposed,
    Quarantined,
    Repaired,
    RunStarted,
    SessionStarted,
    Surveyed,
)

START = -1
"""Index of the start schedule, which is no proposal."""
REFERENCE = -2
"""Index of the plan that the best found is compared with at the end."""


@dataclass
class Trial:
    """One proposal and all that became of it."""

    index: int
    proposed: Proposed
    at: float
    gated: Gated | None = None
    measured: dict[Phase, Measured] = field(default_factory=dict)
    faults: list[Faulted] = field(default_factory=list)
    decided: Decided | None = None

    @property
    def key(self) -> str | None:
        return self.gated.key if self.gated else self.proposed.key

    @property
    def edited(self) -> bool:
        """Whether it is more than a plan of the planner."""
        return bool(self.proposed.edits)

    @property
    def evaluated(self) -> bool:
        """Whether a GPU (or its model) was used for it."""
        return bool(self.measured or self.faults)

    @property
    def closed(self) -> bool:
        return self.decided is not None or (self.gated is not None and self.gated.verdict != "passed")

    @property
    def score(self) -> float | None:
        """Log time relative to the start, lower is faster; None where nothing was measured."""
        return self.decided.score if self.decided else None


@dataclass(frozen=True)
class Mark:
    """A point of the best-so-far curve: log time relative to the start after `evals` evaluations."""

    index: int
    evals: int
    elapsed: float
    score: float


@dataclass
class State:
    """`elapsed`: seconds a driver was at work, summed over sessions; the clock of the wall plays no part in it.

    `calibrated`: this session's, by device.
    """

    run: RunStarted | None = None
    sessions: list[SessionStarted] = field(default_factory=list)
    calibrated: dict[str, Calibrated] = field(default_factory=dict)
    calibrations: list[Calibrated] = field(default_factory=list)
    references: list[Measured] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    by_key: dict[str, int] = field(default_factory=dict)
    handles: dict[str, str] = field(default_factory=dict)
    """Who left it, by the handle of each suggestion from outside."""
    best: int = START
    curve: list[Mark] = field(default_factory=list)
    evals: int = 0
    leases: dict[tuple[int, str, int, str], LeaseReserved] = field(default_factory=dict)
    gpu_seconds: float = 0.0
    llm_open: dict[tuple[int, int], LlmReserved] = field(default_factory=dict)
    llm_settled: list[LlmSettled] = field(default_factory=list)
    conversations: list[Asked] = field(default_factory=list)
    not_before: dict[str, float] = field(default_factory=dict)
    """Seconds of work until which a proposer that failed is not asked."""
    notes: list[Noted] = field(default_factory=list)
    """The lab book."""
    dollars: float = 0.0
    tokens: int = 0
    calls: int = 0
    quarantined: dict[str, str] = field(default_factory=dict)
    surveyed: Surveyed | None = None
    """The latest of the present best."""
    ablation: Ablation | None = None
    """Of the present best."""
    exhaustions: list[tuple[int, Surveyed]] = field(default_factory=list)
    """Every time that nothing near the best was open, with the evaluations until then."""
    repairs: list[str] = field(default_factory=list)
    finished: str | None = None
    elapsed: float = 0.0
    events: int = 0

    @property
    def session(self) -> SessionStarted | None:
        """The running one, or the last."""
        return self.sessions[-1] if self.sessions else None

    @property
    def limits(self) -> Limits:
        """Those of the running session; a resumed run may be given more."""
        if self.session is not None:
            return self.session.limits
        return self.run.limits if self.run is not None else Limits()

    @property
    def exhausted(self) -> bool:
        """Whether nothing near the best is open."""
        return self.surveyed is not None and not self.surveyed.open

    @property
    def noise(self) -> float:
        """The A/A spread of the noisiest device in use; 0 before any was calibrated."""
        return max((calibrated.mad for calibrated in self.calibrated.values()), default=0.0)

    @property
    def dollars_reserved(self) -> float:
        return sum(r.dollars for r in self.llm_open.values())

    @property
    def tokens_reserved(self) -> int:
        return sum(r.tokens for r in self.llm_open.values())

    @property
    def best_score(self) -> float:
        return self.curve[-1].score if self.curve else 0.0

    @property
    def best_plan(self) -> int:
        """The latest kept plan of the planner, without edits; the start if there is none."""
        return next((m.index for m in reversed(self.curve) if not self.trials[m.index].edited), START)

    def score_of(self, index: int) -> float:
        """Log time of a kept trial, or of the start, relative to the start."""
        return 0.0 if index == START else self.trials[index].score or 0.0

    @property
    def committed(self) -> int:
        """Evaluations made or certain to be made."""
        return self.evals + sum(not trial.evaluated for trial in self.open_trials)

    @property
    def open_trials(self) -> list[Trial]:
        return [t for t in self.trials if not t.closed]

    def apply(self, event: AnyEvent, elapsed: float) -> None:
        """Take one event. KeyError or IndexError means a damaged journal: events name only what came before them."""
        self.elapsed = max(self.elapsed, elapsed)
        self.events += 1
        match event:
            case RunStarted():
                self.run = event
            case SessionStarted():
                self.sessions.append(event)
                self.calibrated, self.finished = {}, None
                self.not_before = {name: until for name, until in self.not_before.items() if until < inf}
            case Calibrated():
                self.calibrated[event.device] = event
                self.calibrations.append(event)
            case Quarantined() | Surveyed() | Ablation() | Repaired() | Finished():
                self._remark(event)
            case LlmReserved() | LlmSettled() | Asked():
                self._money(event)
            case Noted():
                self.notes.append(event)
            case LeaseReserved() | Measured() | Faulted():
                self._gpu(event)
            case Proposed() | Gated() | Decided():
                self._trial(event)

    def _remark(self, event: Quarantined | Surveyed | Ablation | Repaired | Finished) -> None:
        match event:
            case Quarantined():
                self.quarantined[event.device] = event.reason
            case Surveyed():
                self._survey(event)
            case Ablation():
                self.ablation = event
            case Repaired():
                self.repairs.append(event.what)
            case Finished():
                self.finished = event.reason

    def _survey(self, event: Surveyed) -> None:
        if not event.open and not self.exhausted:
            self.exhaustions.append((self.evals, event))
        self.surveyed = event

    def _money(self, event: LlmReserved | LlmSettled | Asked) -> None:
        if isinstance(event, Asked):
            self.conversations.append(event)
            until = inf if event.wait is None else self.elapsed + event.wait
            self.not_before[event.proposer] = max(until, self.not_before.get(event.proposer, 0.0))
            return
        if isinstance(event, LlmReserved):
            self.llm_open[event.call, event.attempt] = event
            self.calls += 1
            return
        del self.llm_open[event.call, event.attempt]
        self.llm_settled.append(event)
        self.dollars += event.dollars
        self.tokens += event.input_tokens + event.output_tokens + event.cached_tokens

    def _gpu(self, event: LeaseReserved | Measured | Faulted) -> None:
        place = (event.index, event.phase, event.attempt, event.device)
        if isinstance(event, LeaseReserved):
            self.leases[place] = event
            return
        del self.leases[place]
        self.gpu_seconds += event.seconds
        if event.index == REFERENCE and isinstance(event, Measured):
            self.references.append(event)
        if event.index < 0:
            return
        trial = self.trials[event.index]
        self.evals += not trial.evaluated
        if isinstance(event, Measured):
            trial.measured[event.phase] = event
        else:
            trial.faults.append(event)

    def _trial(self, event: Proposed | Gated | Decided) -> None:
        if isinstance(event, Proposed):
            self.trials.append(Trial(event.index, event, self.elapsed))
            if event.handle is not None:
                self.handles[event.handle] = event.proposer
            if event.key is not None:
                self.by_key.setdefault(event.key, event.index)
            return
        trial = self.trials[event.index]
        if isinstance(event, Gated):
            trial.gated = event
            for key in (event.key, event.kernel):
                if key is not None:
                    self.by_key.setdefault(key, event.index)
            return
        trial.decided = event
        if event.outcome == "kept" and event.score is not None:
            self.best, self.surveyed, self.ablation = event.index, None, None
            self.curve.append(Mark(event.index, self.evals, self.elapsed, event.score))


def fold(events: Iterable[tuple[AnyEvent, float]]) -> State:
    """The state after `events`, each with the elapsed seconds at which it was written."""
    state = State()
    for event, elapsed in events:
        state.apply(event, elapsed)
    return state
