"""What the tools answer with, as data. Texts in it that others wrote (`why`, `reason`, notes) are data too."""

from __future__ import annotations

from math import exp
from typing import Any

from pydantic import BaseModel

from amk.agent.decide.feedback import fate
from amk.agent.decide.headroom import foretold, speed_of_light
from amk.agent.decide.neighbourhood import sentence
from amk.agent.journal.state import START, State
from amk.report.diagnostic import printable

WORDS = 600


class TrialView(BaseModel):
    """parent: the proposal that it changed, -1 for the start. edit: how it differs from that. gain: log speed over its
    parent, with `error`, its half width at 99%; None where nothing was measured. ms: per token at each position."""

    index: int
    proposer: str
    settings: dict[str, Any]
    outcome: str
    reason: str
    codes: list[str]
    parent: int
    edit: dict[str, Any]
    why: str
    gain: float | None
    error: float | None
    ms: list[float]


class NoteView(BaseModel):
    author: str
    after_evaluations: int
    text: str


class Overview(BaseModel):
    """The problem, where the search stands, what may still be spent, and the knobs with their values. floor_ms: bytes
    of a step over the memory's bandwidth at each position. speed_of_light: floor over time of the best."""

    run: str
    model: str
    gpu: str
    weights: str
    sequences: int
    positions: list[int]
    simulated: bool
    evaluations: int
    proposals: int
    best: int
    speed_over_start: float
    best_ms: list[float]
    floor_ms: list[float]
    speed_of_light: float | None
    headroom: list[str]
    near_the_best: str
    limits: dict[str, Any]
    spent: dict[str, float]
    knobs: dict[str, list[Any]]
    best_settings: dict[str, Any]
    best_edits: list[Any]
    kinds_of_edit: list[str]
    notes: int


class TryView(BaseModel):
    """A design that was looked at and not measured; fields as in `Trial`. gain: simulated log speed over the parent, at
    the positions of the run. known: what became of the same design earlier."""

    verdict: str
    codes: list[str]
    told: str
    explained: str
    repaired: list[str]
    matters: list[str]
    simulated_ms: list[float]
    simulated_gain: float | None
    registers: int | None
    shared_bytes: int | None
    spilled_bytes: int | None
    refused: str
    known: str


class Handle(BaseModel):
    handle: str


class Submission(BaseModel):
    """state: waiting, open or closed."""

    state: str
    trial: TrialView | None = None


def trial_view(state: State, index: int) -> TrialView:
    trial = state.trials[index]
    told_of = fate(state, trial)
    return TrialView(
        index=index, proposer=trial.proposed.proposer, settings=trial.proposed.settings, outcome=told_of.outcome,
        reason=printable(told_of.reason, WORDS), codes=list(told_of.codes), parent=told_of.parent, edit=told_of.edit,
        why=printable(told_of.why, WORDS), gain=told_of.gain, error=told_of.error, ms=list(told_of.ms),
    )  # fmt: skip


def standing_of(state: State) -> dict[str, Any]:
    """The fields of `Overview` that follow from the state alone."""
    run = state.run
    assert run is not None
    best_ms = fate(state, state.trials[state.best]).ms if state.best != START else ()
    if state.best == START and state.calibrations:
        best_ms = state.calibrations[-1].incumbent_ms
    return {
        "run": run.run, "model": run.model, "gpu": run.target, "weights": run.weights, "sequences": run.batch,
        "positions": list(run.positions), "simulated": run.simulated, "evaluations": state.evals,
        "proposals": len(state.trials), "best": state.best, "speed_over_start": round(exp(-state.best_score), 5),
        "best_ms": list(best_ms), "floor_ms": list(run.floor_ms),
        "speed_of_light": speed_of_light(run.floor_ms, best_ms), "headroom": foretold(state),
        "near_the_best": sentence(state.surveyed) if state.surveyed is not None else "not looked at",
        "limits": state.limits.model_dump(exclude_none=True),
        "spent": {"minutes": round(state.elapsed / 60, 1), "dollars": round(state.dollars, 4), "tokens": state.tokens},
        "notes": len(state.notes),
    }  # fmt: skip
