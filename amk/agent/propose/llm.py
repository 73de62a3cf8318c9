"""A language model as a proposer: it sees the space, the history with its reasons, and where the incumbent's time goes.

The last is the simulator's trace, summed up, unless the run forbids to propose by it. The answer is edits.
The model is asked in a thread of its own, so that the device never waits for the network; until an answer is there, and
whenever there is none, the fallback proposes. Answers are data: values are looked up in the table of the space.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.agent.candidate import Impossible
from amk.agent.propose.base import Context, Proposer, Suggestion
from amk.agent.propose.time_by_phase import time_by_phase
from amk.agent.state import Trial
from amk.agent.transport import Failure, Reply, Request, Transport
from amk.schedule_ir.schedule import Schedule

PROPOSALS = 4
SHOWN = 40
MAX_FAILURES = 4
"""Failures in a row after which the model is not asked again in this session."""


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
pairs against the incumbent; a gain under 1% is not kept. Do not repeat what was tried. Answer in the given JSON form.
"""


@dataclass
class Llm:
    """`fallback` proposes while there is nothing from the model."""

    transport: Transport
    model: str
    fallback: Proposer
    schema: dict[str, Any]
    name: str = "llm"
    failures: list[Failure] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _ready: list[Suggestion] = field(default_factory=list)
    _streak: int = 0

    def ask(self, context: Context) -> Sequence[Suggestion]:
        if not self._ready and self._thread is None and self._streak < MAX_FAILURES:
            self._begin(context)
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        if self._ready:
            found, self._ready = self._ready, []
            return found
        return self.fallback.ask(context)

    def _begin(self, context: Context) -> None:
        base = dict(context.space.point(context.incumbent()))
        request, traced = self.request(context), traced_schedule(context)

        def work() -> None:
            prompt = request.prompt
            if traced is not None:
                prompt = f"{time_by_phase(*traced)}\n{prompt}"
            self._take(self.transport.ask(replace(request, prompt=prompt)), base)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def _take(self, answer: Reply | Failure, base: dict[str, Any]) -> None:
        """`base`: the knob values that the edits of the answer change."""
        found = suggestions(answer.text, self.name) if isinstance(answer, Reply) else answer
        if isinstance(found, Failure):
            self.failures.append(found)
            self._streak += 1
            return
        self._streak = 0
        self._ready = [replace(s, settings=base | s.settings) for s in found]

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


def history_text(context: Context) -> str:
    """Incumbent and the latest trials with what became of them."""
    best = context.space.point(context.incumbent())
    lines = [f"Incumbent, {-100 * context.state.best_score:+.1f}% log speed over the start: {json.dumps(best)}"]
    lines.append(f"The last proposals (changes to the incumbent of today, outcome), of {len(context.state.trials)}:")
    for trial in context.state.trials[-SHOWN:]:
        changed = context.space.changes(context.history.settings[trial.index], context.incumbent())
        lines.append(f"{json.dumps(changed)}: {outcome_text(trial)}")
    lines.append(f"Give {PROPOSALS} proposals.")
    return "\n".join(lines)


def outcome_text(trial: Trial) -> str:
    if trial.decided is not None:
        return f"{trial.decided.outcome}, {trial.decided.reason}"
    if trial.gated is not None:
        return f"{trial.gated.verdict} {' '.join(trial.gated.codes)} {trial.gated.detail}"
    return "open"
