"""One session of a search, put together: back end, proposers, loop, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amk.agent import runs
from amk.agent.candidate import Candidate, Impossible, Workshop
from amk.agent.certify import Certifier
from amk.agent.devices import local_gpus, matching
from amk.agent.gate import Compiler, Gate, compile_checked
from amk.agent.html_report import render
from amk.agent.journal import Journal
from amk.agent.loop import Loop
from amk.agent.measure import Backend
from amk.agent.prices import price_of
from amk.agent.propose.base import Proposer
from amk.agent.propose.beam import Beam
from amk.agent.propose.evolution import Evolution
from amk.agent.propose.llm import Edits, Llm
from amk.agent.propose.local import Local
from amk.agent.propose.portfolio import Portfolio
from amk.agent.propose.random_draw import RandomDraw
from amk.agent.propose.replay import Replay
from amk.agent.propose.surrogate import Surrogate
from amk.agent.simulated import SimulatedBackend
from amk.agent.space import Space
from amk.agent.state import START, State
from amk.agent.supervisor import Supervisor
from amk.agent.transport import Cassette, Transport
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.model import load_model
from amk.schedule_ir.target import Target, load_target

PROPOSERS = ("portfolio", "random", "local", "evolution", "beam", "surrogate", "llm", "replay")
CASSETTE = "llm.jsonl"
REPORT = "report.html"
WORKER_LOG = "worker.log"


@dataclass(frozen=True)
class LlmOptions:
    """How the language model may be used. `replay` answers from the run's record only."""

    model: str | None = None
    price: str | None = None
    replay: bool = False


def offline(name: str, recorded: tuple[dict[str, Any], ...] = ()) -> Proposer:
    """A proposer that needs no network."""
    simple: dict[str, Callable[[], Proposer]] = {
        "random": RandomDraw,
        "local": Local,
        "evolution": Evolution,
        "beam": Beam,
        "surrogate": Surrogate,
        "replay": lambda: Replay(recorded),
        "portfolio": lambda: Portfolio((Beam(), Surrogate(), Evolution(), Local(), RandomDraw())),
    }
    return simple[name]()


def proposer_for(
    name: str, journal: Journal, options: LlmOptions, recorded: tuple[dict[str, Any], ...] = ()
) -> Proposer:
    """AMK706 if a language model is asked for without its name, price or budget."""
    if name != "llm":
        return offline(name, recorded)
    if options.model is None or (journal.state.limits.dollars <= 0 and not options.replay):
        raise AmkError(Diagnostic("AMK706", "the proposer llm needs --llm-model and --max-dollars"))
    cassette = Cassette(journal.folder / CASSETTE, options.replay)
    transport = Transport(journal, price_of(options.model, options.price), cassette=cassette)
    return Llm(transport, options.model, offline("portfolio"), Edits.model_json_schema())


def backend_for(target: Target, seed: int, folder: Path | None) -> Backend:
    """This machine's GPU if it is the named one, else the simulator."""
    gpu = matching(target, local_gpus())
    if gpu is None or folder is None:
        return SimulatedBackend(target.name, seed)
    from amk.agent.gpu_backend import GpuBackend

    return GpuBackend(Supervisor(folder / WORKER_LOG, gpu.ordinal), gpu.name)


def recorded_points(state: State) -> tuple[dict[str, Any], ...]:
    """The proposals of a run, for replay."""
    return tuple(t.proposed.settings for t in state.trials)


def workshop_of(state: State) -> Workshop:
    run = state.run
    assert run is not None
    return Workshop(load_model(run.model), load_target(run.target), run.context)


def loop_of(
    journal: Journal, backend: Backend, proposer: Proposer, certify: Certifier, compiler: Compiler = compile_checked
) -> Loop:
    """The loop of a run that was begun."""
    run = journal.state.run
    assert run is not None
    inbox = runs.Inbox(journal.folder / runs.INBOX)
    gate = Gate(workshop_of(journal.state), certify, compiler)
    return Loop(
        journal, Space.around(PRESETS[run.start]), gate, (backend,), proposer,
        inbox=lambda: inbox.take(journal.state.handles), judges_unchanged=lambda: runs.check_judges(journal),
    )  # fmt: skip


def candidate_of(state: State, index: int) -> Candidate | None:
    """The candidate of a trial (or of the start) planned again; None if the planner no longer makes it."""
    run = state.run
    assert run is not None
    space = Space.around(PRESETS[run.start])
    settings = space.start if index == START else space.parse(state.trials[index].proposed.settings)
    made = workshop_of(state).make(settings)
    return None if isinstance(made, Impossible) else made


def write_report(folder: Path, state: State) -> Path:
    """The report of a run beside its journal."""
    path = folder / REPORT
    text = render(state, candidate_of(state, state.best), candidate_of(state, START))
    runs.write_whole(path, text)
    return path
