"""The search for other agents, as an MCP server: read everything, suggest anything, decide nothing.

The tools of a run are those of `amk/agent/tools/desk.py`, with the run's name before their arguments. Beside them a
client may start searches, stop and follow those that it started, and export what was found. A suggestion goes into the
inbox of a run and through the same gate as any other proposal. No tool sets a verdict, records a measurement, or spends
money. What a client may do is limited (`limits.py`). Logs go to standard error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp_types import Resource, Tool, ToolAnnotations
from pydantic import BaseModel

from amk.agent.device.measure import positions_within
from amk.agent.gate.candidate import Workshop
from amk.agent.journal.events import Limits, RunStarted
from amk.agent.journal.inbox import INBOX, MCP, Inbox
from amk.agent.journal.state import State
from amk.agent.journal.store import read_state
from amk.agent.remote.limits import LimitError, Searches
from amk.agent.report.standing import Standing, standings
from amk.agent.run import export, runs
from amk.agent.tools.calls import signature
from amk.agent.tools.desk import READING, WRITING, Desk
from amk.agent.tools.refused import RefusedError
from amk.agent.tools.trial import DesignRequest, Look, Trial, look
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.formats import formats
from amk.planner.space import OutsideSpaceError
from amk.report.diagnostic import AmkError
from amk.simulator.constants import Constants, constants_of
from amk.targets.target import load_target
from amk.version import __version__
from amk.weights.weight_format import FormatName

READ = ToolAnnotations(read_only_hint=True)
SUGGEST = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False)
STOP = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
CONTEXT: Final = 8192
"""Cache positions, as of `amk autoresearch`."""
LONGEST_FOLLOW: Final = 300.0
LOOKS: Final = 1.0
"""Seconds between two looks at a run that is followed."""
Start = Literal["fast", "phased", "untuned", "naive"]


class RunSummary(BaseModel):
    """limit: evaluations at most, None without a limit. ended: why the search ended; of one that this client started,
    and that failed, what it said last."""

    run: str
    state: str
    model: str
    gpu: str
    evaluations: int
    limit: int | None
    speed_over_start: float
    simulated: bool
    ended: str | None
    proposers: list[Standing]


class Exported(BaseModel):
    """Files on the machine of the server, and the resources that hold the same."""

    schedule: str
    certificate: str
    schedule_resource: str
    check: str


@dataclass
class Server:
    """One client. `look` judges designs, `searches` are those that this client started."""

    look: Look = look
    searches: Searches = field(default_factory=Searches)

    def desk(self, run: str) -> Desk:
        folder, state = run_of(run)
        return Desk(MCP, Inbox(folder / INBOX), lambda: state, self._limited_look)

    def _limited_look(self, request: DesignRequest) -> Trial:
        with self.searches.looking():
            return self.look(request)

    def check_settings(
        self, changes: dict[str, Any], model: str, gpu: str, dtype: FormatName = "bf16",
        lm_head_dtype: FormatName | None = None, batch: int = 1, start: Start = "fast",
        constants: Constants | None = None, context: int = CONTEXT,
    ) -> Trial:  # fmt: skip
        """Plan and validate a plan with `changes` for a model and a GPU, as a run with these arguments would, without
        one. Nothing is run or recorded. constants, context: as of `start_run`."""
        target, known = load_target(gpu), load_model(model)
        context = _positions(context, known)
        workshop = Workshop(known, target, context, formats(dtype, lm_head_dtype), batch)
        space = workshop.space(start)
        settings = space.parse(changes)
        asked = RunStarted(
            run="-", model=model, target=workshop.target.name, dtype=dtype,
            lm_head_dtype=lm_head_dtype, context=context, positions=positions_within(context),
            start=start, settings={}, seed=0, proposer="mcp", backend="none", simulated=True, limits=Limits(),
            manifest="", version=__version__, batch=batch,
            constants=constants and constants_of(constants, target),
        )  # fmt: skip
        return self._limited_look(
            DesignRequest(run=asked, settings=dict(space.point(settings)), edits=(), compile=False)
        )

    def list_runs(self) -> list[RunSummary]:
        """All stored searches, newest first."""
        return [
            summary(folder.name, runs.status(folder, state), state)
            for folder, state in runs.all_runs()
            if not isinstance(state, AmkError) and state.run is not None
        ]

    def start_run(
        self, model: str, gpu: str, dtype: FormatName = "bf16", lm_head_dtype: FormatName | None = None,
        batch: int = 1, start: Start = "fast", evaluations: int = 100, minutes: float = 30.0, seed: int = 0,
        constants: Constants | None = None, context: int = CONTEXT,
    ) -> RunSummary:  # fmt: skip
        """Start a search in a process of its own, which outlives this server; on a machine without the GPU it is
        simulated. It calls no language model and spends no money. How many may run, and how long, is limited.
        constants: the simulator's of the GPU, as in a file of `amk calibrate --learn`; without them the GPU's own.
        context: cache positions, up to those of the model."""
        context = _positions(context, load_model(model))
        target = load_target(gpu)
        words = ["--model", model, "--gpu", gpu, "--dtype", dtype, "--batch", str(batch), "--start", start]
        words += ["--lm-head-dtype", lm_head_dtype] if lm_head_dtype else []
        words += ["--seed", str(seed), "--max-context", str(context)]
        gpu_constants = constants and constants_of(constants, target)
        name = self.searches.start(words, evaluations, minutes, gpu_constants)
        return self._summary(name)

    def stop_run(self, run: str) -> RunSummary:
        """Stop a search that this client started; what it found is kept, and it can be resumed."""
        self.searches.stop(run)
        return self._summary(run)

    async def follow_run(self, run: str, ctx: Context[Any, Any], seconds: float = 60.0) -> RunSummary:
        """Wait until the search ends, at most so many seconds; progress is notified with every further evaluation."""
        evaluations = -1
        with anyio.move_on_after(min(max(seconds, 0.0), LONGEST_FOLLOW)):
            while True:
                now = await anyio.to_thread.run_sync(self._summary, run)
                if now.evaluations > evaluations:  # the protocol asks for progress that grows
                    evaluations = now.evaluations
                    words = f"{evaluations} evaluations, {now.speed_over_start:.3f}x the start"
                    await ctx.report_progress(evaluations, now.limit, words)
                if now.state != "running":
                    return now
                await anyio.sleep(LOOKS)
        return await anyio.to_thread.run_sync(self._summary, run)

    def export_best(self, run: str) -> Exported:
        """Certify the best schedule of a run again, and write it and its certificate beside the run's journal."""
        folder, state = run_of(run)
        with self.searches.looking():
            schedule, certificate = export.export(state, folder / export.BEST)
        return Exported(
            schedule=str(schedule), certificate=str(certificate),
            schedule_resource=f"amk://runs/{folder.name}/best.schedule.json",
            check=f"amk check-certificate {schedule} {certificate}",
        )  # fmt: skip

    def _summary(self, run: str) -> RunSummary:
        folder, state = run_of(run)
        answer = summary(folder.name, runs.status(folder, state), state)
        if answer.state != "interrupted":
            return answer
        return answer.model_copy(update={"ended": self.searches.last_words(folder.name)})


def _positions(context: int, model: ModelSpec) -> int:
    if context < 2:
        raise LimitError("context: 2 positions or more")
    return min(context, model.max_context)


class Strict(MCPServer[Any]):
    """Refuses arguments that a tool has not. The SDK leaves them out in silence: a limit that a client misspells would
    not hold, and settings under another name would be judged without what they change. Lists what the latest runs have
    written beside the templates, for clients that show a list."""

    async def list_resources(self) -> list[Resource]:
        there = await anyio.to_thread.run_sync(lambda: list(written(MOST_LISTED)))
        return [
            Resource(uri=f"amk://runs/{run}/{name}", name=f"{run} {name}", mime_type=RESOURCES[name][0])
            for run, name in there
        ]

    async def list_tools(self) -> list[Tool]:
        closed = {"additionalProperties": False}
        found = await super().list_tools()
        return [tool.model_copy(update={"input_schema": tool.input_schema | closed}) for tool in found]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
        for tool in await super().list_tools():
            known = tool.input_schema.get("properties", {})
            if tool.name == name and (unknown := sorted(arguments.keys() - known)):
                raise ToolError(f"{name} has no argument {', '.join(unknown)[:200]}; it has {', '.join(known)}")
        return await super().call_tool(name, arguments, context)


SIMULATING: Final = (Desk.read_times, Desk.read_timeline)
"""Tools that cost as much as a look at a design."""


def server(client: Server | None = None) -> MCPServer[Any]:
    """The server with its tools and resources, for one client."""
    tools = client or Server()
    mcp = Strict("amk", instructions=__doc__ or "", version=__version__)
    for reading in READING:
        mcp.tool(annotations=READ)(_of_run(tools, reading))
    for writing in WRITING:
        mcp.tool(annotations=SUGGEST)(_of_run(tools, writing))
    for read in (tools.list_runs, tools.check_settings):
        mcp.tool(annotations=READ)(_refusing(read))
    mcp.tool(annotations=READ)(tools.follow_run)
    mcp.tool(annotations=SUGGEST)(_refusing(tools.start_run))
    mcp.tool(annotations=STOP)(_refusing(tools.stop_run))
    mcp.tool(annotations=SUGGEST)(_refusing(tools.export_best))
    for name, (kind, file) in RESOURCES.items():
        mcp.resource(f"amk://runs/{{run}}/{name}", name=name, mime_type=kind)(_reader(file))
    return mcp


RESOURCES: Final = {
    "results.tsv": ("text/tab-separated-values", "results.tsv"),
    "report.html": ("text/html", "report.html"),
    "best.schedule.json": ("application/json", export.BEST),
}
"""What a run has written, by the end of its address."""
MOST_LISTED: Final = 20
"""Latest runs whose resources are listed; those of the others are read by their addresses."""


def written(latest: int) -> Iterator[tuple[str, str]]:
    """(run, resource) of the latest runs, newest first."""
    for folder in runs.folders()[:latest]:
        yield from ((folder.name, name) for name, (_, file) in RESOURCES.items() if (folder / file).is_file())


def _reader(name: str) -> Callable[[str], str]:
    """What reads the file `name` of a run. ResourceNotFoundError if there is no such run or file."""

    def read(run: str) -> str:
        try:
            return (runs.find(run) / name).read_text(encoding="utf-8")
        except AmkError as error:
            raise ResourceNotFoundError(str(error)) from error
        except OSError as error:
            raise ResourceNotFoundError(f"run {run[:80]} has no {name} yet") from error

    return read


def _of_run(client: Server, method: Callable[..., Any]) -> Callable[..., Any]:
    """A tool of the desk with the run's name before its arguments."""

    def called(run: str, **arguments: Any) -> Any:
        with client.searches.looking() if method in SIMULATING else nullcontext():
            return method(client.desk(run), **arguments)

    known = signature(method)
    first = inspect.Parameter("run", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
    return _named(_refusing(called), method, known.replace(parameters=[first, *known.parameters.values()]))


def _refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    """The tool, with what is refused as an error of the tool."""

    def called(*positional: Any, **arguments: Any) -> Any:
        try:
            return method(*positional, **arguments)
        except (AmkError, OutsideSpaceError, RefusedError, LimitError) as error:
            raise ToolError(str(error)) from error

    return _named(called, method, signature(method) if inspect.ismethod(method) else None)


def _named(
    tool: Callable[..., Any], method: Callable[..., Any], signature: inspect.Signature | None
) -> Callable[..., Any]:
    tool.__name__, tool.__doc__ = method.__name__, inspect.cleandoc(method.__doc__ or "")
    if signature is not None:
        tool.__signature__ = signature  # type: ignore[attr-defined]
        tool.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        tool.__annotations__["return"] = signature.return_annotation
    return tool


def run_of(name: str) -> tuple[Path, State]:
    """The folder and state of a run. AmkError, as an error of the tool, if there is none."""
    try:
        folder = runs.find(name)
        state = read_state(folder)
    except AmkError as error:
        raise ToolError(str(error)) from error
    if state.run is None:
        raise ToolError(f"run {name[:80]} was never started")
    return folder, state


def summary(name: str, status: str, state: State) -> RunSummary:
    run = state.run
    assert run is not None
    return RunSummary(
        run=name, state=status, model=run.model, gpu=run.target, evaluations=state.evals, limit=state.limits.evals,
        speed_over_start=exp(-state.best_score), simulated=run.simulated, ended=state.finished,
        proposers=standings(state),
    )  # fmt: skip
