"""What a run can write down. Everything else about it follows from these, in order."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from amk.models.matrices import label
from amk.planner.formats import formats
from amk.simulator.constants import Constants
from amk.weights.weight_format import FormatName


def _unicode(text: object) -> object:
    """What others wrote may hold half of a character, which no file can."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(_unicode), Field(max_length=4000)]
Ratios = tuple[float, ...]
NOTE_CHARACTERS: Final = 2000
SYNONYMS: Final = {"screen": "pilot", "race": "paired test"}
"""Other words for phases that journals hold."""
Phase = Annotated[
    Literal["calibrate", "pilot", "paired test", "confirm"], BeforeValidator(lambda word: SYNONYMS.get(word, word))
]
Outcome = Literal["kept", "rejected", "quarantined", "failed"]


class Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Limits(Event):
    """None is no limit. dollars is 0 unless a language model was asked for."""

    minutes: float | None = Field(default=None, gt=0)
    evals: int | None = Field(default=None, ge=1)
    dollars: float = Field(default=0.0, ge=0)
    tokens: int | None = Field(default=None, ge=1)
    calls: int | None = Field(default=None, ge=1)


class RunStarted(Event):
    kind: Literal["run_started"] = "run_started"
    run: Text
    model: Text
    target: Text
    dtype: FormatName
    lm_head_dtype: FormatName | None = None
    """That of lm_head, where it differs from the layers'."""
    context: int
    positions: tuple[int, ...]
    start: Text
    settings: dict[str, Any]
    seed: int
    proposer: Text
    llm_model: Text | None = None
    backend: Text
    simulated: bool
    limits: Limits
    manifest: Text
    version: Text
    prior: bool = True
    """Whether the simulator, whose constants were fitted to measured plans, may propose."""
    batch: int = Field(default=1, ge=1)
    """Sequences decoded together."""
    floor_ms: tuple[float, ...] = ()
    """Bytes of a step of the start over the memory's bandwidth, at each position."""
    constants: Constants | None = None
    """Of the simulator, where the target's own are not used."""

    @property
    def weights(self) -> str:
        """A short name of the formats."""
        return label(formats(self.dtype, self.lm_head_dtype))


class SessionStarted(Event):
    """A driver process took the run; `device` may differ from the last session's. limits: those from now on; changed:
    how they differ from those before, in words."""

    kind: Literal["session_started"] = "session_started"
    session: int
    device: Text
    backend: Text
    simulated: bool
    limits: Limits
    changed: tuple[Text, ...] = ()


class Calibrated(Event):
    """The incumbent against itself: `mad` is the spread of rounds that differ by noise only; ms per position. card: the
    physical device ("" if it has no name); at: when it was measured, in seconds since 1970."""

    kind: Literal["calibrated"] = "calibrated"
    session: int
    device: Text
    card: Text = ""
    at: float = 0.0
    mad: float
    incumbent_ms: tuple[float, ...]


class Proposed(Event):
    """parent: the proposal (-1: the start) that `edit` was made to; edit: how this one differs from it, in knobs and in
    edits of the schedule. edits: all that are made to the plan of `settings`, each in canonical JSON. other: a second
    parent, whose edits were merged."""

    kind: Literal["proposed"] = "proposed"
    index: int
    proposer: Text
    settings: dict[str, Any]
    why: Text = ""
    parent: int = -1
    edit: dict[str, Any] = {}
    edits: tuple[str, ...] = ()
    other: int | None = None
    operator: Text = ""
    """Which of its ways the proposer took, so that it can learn which pay."""
    handle: Text | None = None
    key: Text | None = None
    """Of the lowered program, or of the content of an edited schedule; None if there is none."""


class Gated(Event):
    """`passed` certifies: validated SAFE, lowered, compiled, within resources, and where kernels run the checker
    accepts a certificate (`unknown` with AMK215 if it does not)."""

    kind: Literal["gated"] = "gated"
    index: int
    verdict: Literal["passed", "duplicate", "impossible", "unsafe", "unknown", "uncompilable"]
    key: Text | None = None
    codes: tuple[Text, ...] = ()
    detail: Text = ""
    kernel: Text | None = None
    """Key of the kernel, known of an edited schedule once it is SAFE."""
    repaired: tuple[Text, ...] = ()
    """What was mended after the edits, in words."""
    simulated_ms: float | None = None
    """Of what a device is going to run, at one position: how well the simulator ranks is told of every run."""
    bottleneck: Text = ""
    """The phase in which the same simulation loses most, and to what."""


class LeaseReserved(Event):
    """A GPU is about to be used for one measurement; every lease is settled by `measured` or `faulted`."""

    kind: Literal["lease_reserved"] = "lease_reserved"
    index: int
    phase: Phase
    attempt: int
    device: Text
    seconds: float


class Measured(Event):
    """Log of candidate time over incumbent time per round; median ms per position of both. `against`: the incumbent."""

    kind: Literal["measured"] = "measured"
    index: int
    phase: Phase
    attempt: int
    seconds: float
    log_ratios: Ratios
    candidate_ms: tuple[float, ...]
    incumbent_ms: tuple[float, ...]
    against: int
    device: Text


class Faulted(Event):
    kind: Literal["faulted"] = "faulted"
    index: int
    phase: Phase
    attempt: int
    seconds: float
    fault: Text
    device: Text
    detail: Text = ""


class Decided(Event):
    """The end of a proposal. `log_gain` > 0 is faster; `score` is the log time relative to the start, where known."""

    kind: Literal["decided"] = "decided"
    index: int
    outcome: Outcome
    reason: Text
    log_gain: float | None = None
    bound: float | None = None
    score: float | None = None


class LlmReserved(Event):
    """The most that one attempt can cost is set aside before it is sent."""

    kind: Literal["llm_reserved"] = "llm_reserved"
    call: int
    attempt: int
    model: Text
    dollars: float
    tokens: int


class LlmSettled(Event):
    kind: Literal["llm_settled"] = "llm_settled"
    call: int
    attempt: int
    dollars: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    outcome: Text
    live: bool


class Asked(Event):
    """A proposer that may fail was asked: outcome is "answered" or why there is no answer. wait: seconds until it is
    asked again, None for not in this session. evals: evaluations when it was asked."""

    kind: Literal["asked"] = "asked"
    proposer: Text
    outcome: Text
    proposals: int = 0
    detail: Text = ""
    wait: float | None = 0.0
    evals: int = 0
    turns: int = 0
    """Answers of the model in the conversation."""
    tools: dict[Text, int] = {}
    """How often each tool was called."""
    faults: tuple[Text, ...] = ()
    """Calls of tools that were refused, and attempts that failed, in words."""


class Noted(Event):
    """An entry of the lab book: what somebody who proposes learned, for those who come later. evals: evaluations then.
    handle: of a note from outside."""

    kind: Literal["noted"] = "noted"
    author: Text
    text: Annotated[Text, Field(max_length=NOTE_CHARACTERS)]
    evals: int = 0
    handle: Text | None = None


class Quarantined(Event):
    kind: Literal["quarantined"] = "quarantined"
    device: Text
    reason: Text


class Surveyed(Event):
    """What is left near the proposal `best` (`decide/neighbourhood.py` says what is near, and how it is settled).
    needed: log gain worth looking for; reach: the most that a bounded plan could gain (log)."""

    kind: Literal["surveyed"] = "surveyed"
    best: int
    singles: int
    pairs: int
    tried: int
    impossible: int
    duplicate: int
    avoided: int
    bounded: int
    open: int
    needed: float
    reach: float
    interactions: int


class Ablation(Event):
    """What changes of the proposal `best` are worth: the simulated log gain that it loses without each, in the mean
    over the run's positions; None where nothing runs without it. every: how many changes it consists of."""

    kind: Literal["ablation"] = "ablation"
    best: int
    worth: tuple[tuple[Text, float | None], ...]
    every: int


class Repaired(Event):
    """A copy of the journal had lost events, which were read back from the other."""

    kind: Literal["repaired"] = "repaired"
    what: Text


class Finished(Event):
    kind: Literal["finished"] = "finished"
    reason: Text


AnyEvent = (
    RunStarted
    | SessionStarted
    | Calibrated
    | Proposed
    | Gated
    | LeaseReserved
    | Measured
    | Faulted
    | Decided
    | LlmReserved
    | LlmSettled
    | Asked
    | Noted
    | Quarantined
    | Surveyed
    | Ablation
    | Repaired
    | Finished
)
EVENT: TypeAdapter[AnyEvent] = TypeAdapter(Annotated[AnyEvent, Field(discriminator="kind")])
