"""The search for other agents, as an MCP server: read everything, suggest anything, decide nothing.

A suggestion goes into the inbox of a run and through the same gate as any other proposal. No tool sets a verdict,
records a measurement, or touches a budget. Long work is a handle and polling. Logs go to standard error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import exp
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from amk import __version__
from amk.agent import runs
from amk.agent.candidate import Impossible, Workshop
from amk.agent.certify import Certifier, installed
from amk.agent.feedback import fate
from amk.agent.journal import read_state
from amk.agent.standing import Standing, standings
from amk.agent.state import State
from amk.agent.surroundings import told
from amk.planner.formats import formats
from amk.planner.settings import STARTS, Settings
from amk.planner.space import OutsideSpaceError, Space
from amk.report.codes import TITLES, explanation, normalise
from amk.report.diagnostic import AmkError
from amk.schedule_ir.model import load_model
from amk.schedule_ir.target import load_target
from amk.schedule_ir.weight_format import FormatName

LATEST = 50
READ = ToolAnnotations(read_only_hint=True)
SUGGEST = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False)


class RunSummary(BaseModel):
    run: str
    state: str
    model: str
    gpu: str
    evaluations: int
    speed_over_start: float
    simulated: bool


class TrialView(BaseModel):
    index: int
    proposer: str
    settings: dict[str, Any]
    outcome: str
    reason: str
    codes: list[str]
    parent: int
    """The proposal that it changed, -1 for the start."""
    edit: dict[str, Any]
    why: str
    gain: float | None
    """Log speed over its parent, with `error`, its half width at 99%."""
    error: float | None
    ms: list[float]


class RunView(BaseModel):
    summary: RunSummary
    knobs: dict[str, list[Any]]
    best_settings: dict[str, Any]
    near_the_best: str
    proposers: list[Standing]
    latest: list[TrialView]


class PlanView(BaseModel):
    """`verdict` is the validator's, made on this request."""

    verdict: str
    codes: list[str]
    detail: str
    kernel: str


class Handle(BaseModel):
    handle: str


class Submission(BaseModel):
    state: str
    trial: TrialView | None = None


def server() -> MCPServer[Any]:
    """The server with its tools."""
    found: MCPServer[Any] = MCPServer("amk", instructions=__doc__ or "", version=__version__)
    for tool in (list_runs, read_run, check_settings, explain_code, read_proposal):
        found.tool(annotations=READ)(tool)
    found.tool(annotations=SUGGEST)(submit_proposal)
    return found


def list_runs() -> list[RunSummary]:
    """All stored searches, newest first."""
    return [
        _summary(folder.name, runs.status(folder, state), state)
        for folder, state in runs.all_runs()
        if not isinstance(state, AmkError) and state.run is not None
    ]


def read_run(run: str) -> RunView:
    """One search: its space, its best settings, and what became of the latest proposals."""
    folder, state = _state(run)
    space = _space(state)
    best = space.start if state.best < 0 else space.parse(state.trials[state.best].proposed.settings)
    return RunView(
        summary=_summary(folder.name, runs.status(folder, state), state),
        knobs={k.name: list(k.values) for k in space.knobs}, best_settings=dict(space.point(best)),
        near_the_best=told(state.surveyed) if state.surveyed is not None else "not looked at",
        proposers=standings(state), latest=[_trial(state, t.index) for t in state.trials[-LATEST:]],
    )  # fmt: skip


@cache
def _certifier(made_by: Callable[[], Certifier]) -> Certifier:
    """One for all calls, so that what is proved of a schedule serves those that are like it."""
    return made_by()


def check_settings(
    changes: dict[str, Any], run: str | None = None, model: str | None = None, gpu: str | None = None,
    dtype: FormatName = "bf16", batch: int = 1, start: str = "fast",
) -> PlanView:  # fmt: skip
    """Plan, lower and validate a start plan with `changes`: that of `run`, with its formats, batch and context, or else
    of `model` and `gpu` with the others. Nothing is run or recorded."""
    try:
        space, workshop = _space_of(run) if run is not None else _space_for(model, gpu, dtype, batch, start)
        settings = space.parse(changes)
        made = workshop.make(settings)
        if isinstance(made, Impossible):
            return PlanView(verdict="IMPOSSIBLE", codes=list(made.codes), detail=made.detail, kernel="")
        judged = _certifier(installed)(made.schedule)
    except (AmkError, OutsideSpaceError) as error:
        raise ToolError(str(error)) from error
    return PlanView(verdict=judged.outcome, codes=list(judged.codes), detail=judged.detail, kernel=made.key)


def _space_of(run: str) -> tuple[Space, Workshop]:
    started = _state(run)[1].run
    assert started is not None
    workshop = runs.workshop_of(started)
    return workshop.space(started.start), workshop


def _space_for(
    model: str | None, gpu: str | None, dtype: FormatName, batch: int, start: str
) -> tuple[Space, Workshop]:  # fmt: skip
    if not model or not gpu:
        raise ToolError("model and gpu are needed, or run")
    if start not in STARTS:
        raise ToolError(f"start is one of {', '.join(sorted(STARTS))}")
    workshop = Workshop(load_model(model), load_target(gpu), None, formats(dtype), batch)
    return workshop.space(start), workshop


def explain_code(code: str) -> str:
    """What a diagnostic code such as AMK201 means and how to fix it."""
    known = normalise(code)
    if known not in TITLES:
        raise ToolError(f"{known[:40]!r} is not a diagnostic code")
    return explanation(known)


def submit_proposal(run: str, changes: dict[str, Any], why: str) -> Handle:
    """Suggest knob values to a running search; it goes through the same gate as every proposal. Refused at once: what
    was proposed before or waits already, what cannot be planned, and more than wait or were submitted at most."""
    folder, state = _state(run)
    space, inbox = _space(state), runs.Inbox(folder / runs.INBOX)
    try:
        settings = space.parse(changes)
    except OutsideSpaceError as error:
        raise ToolError(str(error)) from error
    point = dict(space.point(settings))
    if reason := _refused(state, inbox, settings, point):
        raise ToolError(reason)
    return Handle(handle=inbox.put(point, why))


def _refused(state: State, inbox: runs.Inbox, settings: Settings, point: dict[str, Any]) -> str | None:
    """Why a submission is not taken, or None."""
    assert state.run is not None
    waiting = inbox.waiting(state.handles)
    if len(waiting) >= runs.MOST_WAITING:
        return f"{len(waiting)} submissions wait already: go on when some of them are judged"
    if len(waiting) + len(state.handles) >= runs.MOST_SUBMITTED:
        return f"{runs.MOST_SUBMITTED} submissions were made to this run, which is the limit"
    if any(each.settings == point for each in waiting):
        return "the same submission waits already"
    workshop = runs.workshop_of(state.run)
    made = workshop.make(settings)
    if isinstance(made, Impossible):
        return f"it cannot be planned: {' '.join(made.codes)} {made.detail}"
    if made.key == workshop.key(workshop.space(state.run.start).start):
        return "it is the kernel of the start"
    known = state.by_key.get(made.key)
    return None if known is None else f"it is the kernel of proposal {known}: read_run says what became of it"


def read_proposal(run: str, handle: str) -> Submission:
    """What became of a submitted proposal: waiting, open or closed."""
    folder, state = _state(run)
    trial = next((t for t in state.trials if t.proposed.handle == handle), None)
    if trial is not None:
        return Submission(state="closed" if trial.closed else "open", trial=_trial(state, trial.index))
    waiting = {p.stem for p in (folder / runs.INBOX).glob("*.json")}
    if handle not in waiting:
        raise ToolError("no such handle")
    return Submission(state="waiting")


def _state(name: str) -> tuple[Any, State]:
    try:
        folder = runs.find(name)
        state = read_state(folder)
    except AmkError as error:
        raise ToolError(str(error)) from error
    if state.run is None:
        raise ToolError(f"run {name[:80]} was never started")
    return folder, state


def _space(state: State) -> Space:
    assert state.run is not None
    return runs.workshop_of(state.run).space(state.run.start)


def _summary(name: str, status: str, state: State) -> RunSummary:
    run = state.run
    assert run is not None
    return RunSummary(
        run=name, state=status, model=run.model, gpu=run.target, evaluations=state.evals,
        speed_over_start=exp(-state.best_score), simulated=run.simulated,
    )  # fmt: skip


def _trial(state: State, index: int) -> TrialView:
    trial = state.trials[index]
    told = fate(state, trial)
    return TrialView(
        index=index, proposer=trial.proposed.proposer, settings=trial.proposed.settings, outcome=told.outcome,
        reason=told.reason, codes=list(told.codes), parent=told.parent, edit=told.edit, why=told.why, gain=told.gain,
        error=told.error, ms=list(told.ms),
    )  # fmt: skip
