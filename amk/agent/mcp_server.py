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
from amk.agent.html_report import verdict
from amk.agent.journal import read_state
from amk.agent.state import State
from amk.agent.surroundings import told
from amk.planner.space import OutsideSpaceError, Space
from amk.report.codes import TITLES, explanation, normalise
from amk.report.diagnostic import AmkError
from amk.schedule_ir.model import load_model
from amk.schedule_ir.target import load_target

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
    log_gain: float | None


class RunView(BaseModel):
    summary: RunSummary
    knobs: dict[str, list[Any]]
    best_settings: dict[str, Any]
    near_the_best: str
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
        latest=[_trial(state, t.index) for t in state.trials[-LATEST:]],
    )  # fmt: skip


@cache
def _certifier(made_by: Callable[[], Certifier]) -> Certifier:
    """One for all calls, so that what is proved of a schedule serves those that are like it."""
    return made_by()


def check_settings(model: str, gpu: str, changes: dict[str, Any]) -> PlanView:
    """Plan, lower and validate the fast plan with `changes`. Nothing is run or recorded."""
    try:
        workshop = Workshop(load_model(model), load_target(gpu))
        settings = workshop.space("fast").parse(changes)
        made = workshop.make(settings)
        if isinstance(made, Impossible):
            return PlanView(verdict="IMPOSSIBLE", codes=list(made.codes), detail=made.detail, kernel="")
        judged = _certifier(installed)(made.schedule)
    except (AmkError, OutsideSpaceError) as error:
        raise ToolError(str(error)) from error
    return PlanView(verdict=judged.outcome, codes=list(judged.codes), detail=judged.detail, kernel=made.key)


def explain_code(code: str) -> str:
    """What a diagnostic code such as AMK201 means and how to fix it."""
    known = normalise(code)
    if known not in TITLES:
        raise ToolError(f"{known[:40]!r} is not a diagnostic code")
    return explanation(known)


def submit_proposal(run: str, changes: dict[str, Any], why: str) -> Handle:
    """Suggest knob values to a running search; it goes through the same gate as every proposal."""
    folder, state = _state(run)
    space = _space(state)
    try:
        settings = space.parse(changes)
    except OutsideSpaceError as error:
        raise ToolError(str(error)) from error
    return Handle(handle=runs.Inbox(folder / runs.INBOX).put(dict(space.point(settings)), why))


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
    gated, decided = trial.gated, trial.decided
    return TrialView(
        index=index, proposer=trial.proposed.proposer, settings=trial.proposed.settings, outcome=verdict(trial),
        reason=decided.reason if decided else gated.detail if gated else "", codes=list(gated.codes) if gated else [],
        log_gain=decided.log_gain if decided else None,
    )  # fmt: skip
