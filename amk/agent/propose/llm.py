"""A language model as a proposer: it sees the space, the history with its reasons, and where the incumbent's time goes.

The last is the simulator's trace, summed up, unless the run forbids to propose by it. The answer is edits.
The model is asked in a thread of its own, so that the device never waits for the network; until an answer is there, and
whenever there is none, the fallback proposes. Answers are data: values are looked up in the table of the space.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.agent.decide import feedback
from amk.agent.decide.feedback import fate
from amk.agent.gate.candidate import Impossible
from amk.agent.journal.events import Asked
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import START, State
from amk.agent.propose.base import Context, Proposer
from amk.agent.propose.transport import Failure, Reply, Request, Transport
from amk.agent.tools.time_by_phase import time_by_phase
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule

PROPOSALS = 4
SHOWN = 40
PERMANENT = frozenset({
    "no_key", "unavailable", "not_recorded", "refused_by_budget", "AuthenticationError", "PermissionDeniedError",
    "NotFoundError", "BadRequestError", "EnforcedSpendLimitReachedError", "ContractSpendLimitReachedError",
    "LinkedOrganizationSpendLimitReachedError",
})  # fmt: skip
"""Failures that another question in this session would meet again."""
FIRST_WAIT, LONGEST_WAIT = 15.0, 900.0
"""Seconds after the first failure in a row; after each further one twice as long."""
LONGEST_PAUSE = 64
"""Evaluations, at most, for which a model whose proposals earn nothing is not asked: after the first answer without a
gain 2, after each further one twice as many."""


class Change(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    knob: Annotated[str, Field(max_length=60)]
    value: int | float | bool | str | None


class Edit(BaseModel):
    """Changes to the incumbent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    why: Annotated[str, Field(max_length=600)]
    changes: Annotated[tuple[Change, ...], Field(max_length=16)]


class Edits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    proposals: Annotated[tuple[Edit, ...], Field(max_length=16)]


SYSTEM = """You tune the schedule of one persistent CUDA kernel that decodes a Llama-family model, one token at a time.
The weights stream from device memory through per-warp rings in shared memory while phases of the layer hand
activations from SM to SM. Time is lost where the ring runs empty: exposed latency of a hand-off, too few bytes in
flight, chunks that drain too slowly, unequal shares, registers that crowd a block. Propose changes to the incumbent,
each as a set of knob values, with one sentence of reasoning. Every proposal is validated, compiled and measured in
pairs against the incumbent; a gain of less than 0.5%, or within the noise, is not kept.
Do not repeat what was tried. Answer in the given JSON form.
"""


ADVICE = "Advice of the person who started the run. It permits nothing that the knobs do not, and lifts no limit:"


@dataclass
class Llm:
    """`fallback` proposes while there is nothing from the model."""

    transport: Transport
    model: str
    fallback: Proposer
    schema: dict[str, Any]
    name: str = "llm"
    program: str = ""
    """What the person who started the run wishes: advice, which permits nothing."""
    failures: list[Failure] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _ready: list[Suggestion] = field(default_factory=list)
    _streak: int = 0
    _not_before: float = 0.0
    """Seconds of work of the run."""
    _asked_at: int = 0
    """Evaluations when it was asked last."""

    def ask(self, context: Context) -> Sequence[Suggestion]:
        if not self._ready and self._thread is None and self._due(context):
            self._begin(context)
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        if self._ready:
            found, self._ready = self._ready, []
            return found
        return self.fallback.ask(context)

    def _due(self, context: Context) -> bool:
        """Whether the wait after a failure is over, and the pause that follows from answers that earned nothing."""
        if self.transport.journal.elapsed < self._not_before:
            return False
        return context.state.evals - self._asked_at >= pause(context.state, self.name)

    def _begin(self, context: Context) -> None:
        base, parent = dict(context.space.point(context.incumbent())), context.state.best_plan
        self._asked_at = context.state.evals
        request, traced = self.request(context), traced_schedule(context)

        def work() -> None:
            prompt = request.prompt
            if self.program:
                prompt = f"{ADVICE}\n{self.program}\nEnd of the advice.\n{prompt}"
            if traced is not None:
                prompt = f"{time_by_phase(*traced)}\n{prompt}"
            with contextlib.suppress(AmkError):  # the journal failed; the search ends by itself
                self._take(self.transport.ask(replace(request, prompt=prompt)), base, parent)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def _take(self, answer: Reply | Failure, base: dict[str, Any], parent: int) -> None:
        """`base`: the knob values that the edits of the answer change, those of the proposal `parent`."""
        found = suggestions(answer.text, self.name) if isinstance(answer, Reply) else answer
        journal = self.transport.journal
        if isinstance(found, Failure):
            self.failures.append(found)
            self._streak += 1
            wait = None if found.kind in PERMANENT else min(LONGEST_WAIT, FIRST_WAIT * 2 ** (self._streak - 1))
            self._not_before = inf if wait is None else journal.elapsed + wait
            detail = found.detail[:500]
            journal.append(
                Asked(proposer=self.name, outcome=found.kind, detail=detail, wait=wait, evals=self._asked_at)
            )
            return
        self._streak = 0
        journal.append(Asked(proposer=self.name, outcome="answered", proposals=len(found), evals=self._asked_at))
        self._ready = [replace(s, settings=base | s.settings, parent=parent) for s in found]

    def join(self, seconds: float) -> None:
        """Wait for the answer under way, if any."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def request(self, context: Context) -> Request:
        return Request(self.model, SYSTEM + space_text(context), history_text(context), self.schema)


def suggestions(text: str, name: str) -> list[Suggestion] | Failure:
    """The edits in an answer; anything but the agreed form is a failure as a whole."""
    try:
        edits = Edits.model_validate_json(text)
    except ValidationError as error:
        return Failure("wrong_form", str(error.errors(include_url=False, include_input=False)[:2])[:300])
    if not edits.proposals:
        return Failure("wrong_form", "no proposals")
    return [Suggestion(name, {c.knob: c.value for c in e.changes}, e.why) for e in edits.proposals[:PROPOSALS]]


def space_text(context: Context) -> str:
    """The knobs, constant for a run."""
    run = context.state.run
    assert run is not None
    lines = [f"{k.name}: {json.dumps(list(k.values))}" for k in context.space.knobs]
    return f"Model {run.model}, GPU {run.target}, positions {list(run.positions)}.\nKnobs and values:\n" + "\n".join(
        lines
    )


def traced_schedule(context: Context) -> tuple[Schedule, tuple[int, ...]] | None:
    """The incumbent and the positions of the run; None where nobody may propose by the simulator."""
    run, made = context.state.run, context.workshop.make(context.incumbent())
    if run is None or not run.prior or isinstance(made, Impossible):
        return None
    return made.schedule, run.positions


def pause(state: State, proposer: str) -> int:
    """Evaluations for which a proposer is not asked, because its latest proposals led nowhere: each was refused, or
    measured no faster than what it changed."""
    barren = 0
    for trial in reversed([t for t in state.trials if t.proposed.proposer == proposer and t.closed]):
        told = fate(state, trial)
        if told.gain is not None and told.gain > 0 and (told.error is None or told.gain > told.error):
            break
        barren += 1
    answers = barren // PROPOSALS
    return min(LONGEST_PAUSE, 2**answers) if answers else 0


def history_text(context: Context) -> str:
    """Incumbent and the latest trials with what became of them."""
    state, best = context.state, context.space.point(context.incumbent())
    gained = f"{100 * (exp(-state.best_score) - 1):+.2f}% speed over the start"
    lines = [f"The incumbent is {feedback.name(state.best)}, {gained}: {json.dumps(best)}"]
    lines.append(
        f"The latest of {len(state.trials)} proposals, each as a change to its parent, with its gain over that parent:"
    )
    shown = dict.fromkeys([state.best] if state.best != START else [])
    shown |= dict.fromkeys(t.index for t in state.trials[-SHOWN:])
    lines += [fate(state, state.trials[index]).text for index in shown]
    lines.append(f"Give {PROPOSALS} proposals, each as changes to the incumbent.")
    return "\n".join(lines)
