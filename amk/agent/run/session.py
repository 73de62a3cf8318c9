"""One session of a search, put together: back end, proposers, loop, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from amk.agent.device.devices import local_gpus, matching, visible
from amk.agent.device.measure import Backend
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Workshop
from amk.agent.gate.gate import Gate
from amk.agent.gate.pool import GatePool
from amk.agent.journal.events import Noted
from amk.agent.journal.inbox import INBOX, Inbox, Suggestion
from amk.agent.journal.state import State
from amk.agent.journal.store import Journal
from amk.agent.propose.arms import Arms
from amk.agent.propose.base import Proposer
from amk.agent.propose.beam import Beam
from amk.agent.propose.combine import Combine
from amk.agent.propose.evolution import Evolution
from amk.agent.propose.leap import Leap
from amk.agent.propose.llm import AT_ONCE, Llm
from amk.agent.propose.local import Local
from amk.agent.propose.portfolio import Portfolio
from amk.agent.propose.prices import price_of
from amk.agent.propose.random_draw import RandomDraw
from amk.agent.propose.replay import Replay
from amk.agent.propose.singles import Singles
from amk.agent.propose.structure import Structure
from amk.agent.propose.surrogate import Surrogate
from amk.agent.propose.sweep import Sweep
from amk.agent.propose.talk import Bounds, Cassette
from amk.agent.propose.together import Together
from amk.agent.propose.transfer import Lesson, Transfer, lessons_of
from amk.agent.propose.transport import Transport
from amk.agent.run import runs
from amk.agent.run.loop import Loop
from amk.agent.run.reports import workshop_of
from amk.report.diagnostic import AmkError, Diagnostic
from amk.simulator.constants import Constants
from amk.simulator.predict import Simulator
from amk.targets.target import Target

PROPOSERS = (
    "portfolio", "knobs", "structure", "random", "local", "evolution", "beam", "surrogate", "llm", "replay"
)  # fmt: skip
CASSETTE = "llm.jsonl"
WORKER_LOG = "worker-{}.log"


@dataclass(frozen=True)
class LlmOptions:
    """How the language model may be used. `replay` answers from the run's record only."""

    model: str | None = None
    price: str | None = None
    replay: bool = False
    program: str = ""
    turns: int = Bounds.turns
    at_once: int = AT_ONCE


def offline(
    name: str, recorded: tuple[dict[str, Any], ...] = (), prior: bool = True, lessons: tuple[Lesson, ...] = ()
) -> Proposer:
    """A proposer that needs no network. Without `prior` none asks the simulator; AMK005 for the beam, which must."""
    if name == "beam" and not prior:
        raise AmkError(Diagnostic("AMK005", "the beam proposes by the simulator, which --no-prior forbids"))
    simple: dict[str, Callable[[], Proposer]] = {
        "random": RandomDraw,
        "local": Local,
        "evolution": Evolution,
        "beam": Beam,
        "combine": Combine,
        "leap": Leap,
        "surrogate": Surrogate,
        "replay": lambda: Replay(recorded),
        "knobs": partial(turned, prior),
        "structure": Structure,
        "portfolio": lambda: whole(lessons, turned(prior)),
        "sweep": Sweep,
    }
    return simple[name]()


def turned(prior: bool) -> Proposer:
    """What turns knobs."""
    arms: tuple[Proposer, ...] = (Surrogate(), Leap(), Combine(), Evolution(), Local())
    return Portfolio((Beam(), *arms) if prior else arms, Sweep(), last=RandomDraw(), name="knobs")


def whole(lessons: tuple[Lesson, ...], knobs: Proposer) -> Arms:
    """All arms side by side."""
    singles, together = Singles(), Together()
    arms = (*((Transfer(lessons),) if lessons else ()), knobs, Structure(alone=False), singles, together)
    return Arms(arms, (singles, Sweep(), together))


def proposer_for(
    name: str, journal: Journal, options: LlmOptions, recorded: tuple[dict[str, Any], ...] = ()
) -> Proposer:
    """AMK706 if a language model is asked for without its name, price or budget."""
    prior = journal.state.run is None or journal.state.run.prior
    lessons = lessons_of(journal.folder)
    if name != "llm":
        return offline(name, recorded, prior, lessons)
    if options.model is None or (journal.state.limits.dollars <= 0 and not options.replay):
        raise AmkError(Diagnostic("AMK706", "the proposer llm needs --llm-model and --max-dollars"))
    cassette = Cassette(journal.folder / CASSETTE, options.replay)
    transport = Transport(journal, price_of(options.model, options.price), cassette=cassette)
    arms = whole(lessons, turned(prior))
    return Llm(
        transport, options.model, arms, program=options.program, bounds=Bounds(turns=options.turns),
        at_once=options.at_once,
    )  # fmt: skip


def backends_for(
    target: Target, seed: int, folder: Path | None, gpus: int = 1, constants: Constants | None = None
) -> tuple[Backend, ...]:
    """`gpus` of this machine's GPUs that are the named one, else the simulator with these constants. AMK005 if there
    are some, but fewer."""
    found = []
    if folder is not None:
        found = matching(target, visible(local_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")))
    if not found or folder is None:
        return (SimulatedBackend(target.name, seed, Simulator(constants)),)
    if len(found) < gpus:
        raise AmkError(Diagnostic("AMK005", f"--gpus {gpus}: this machine has {len(found)} of {target.title}"))
    from amk.agent.device.device_server import Post, ServerBackend

    logs = [folder / WORKER_LOG.format(gpu.ordinal) for gpu in found]
    pairs = zip(found[:gpus], logs, strict=False)
    return tuple(ServerBackend(Post(gpu.name, gpu.ordinal, log, gpu.uuid)) for gpu, log in pairs)


def is_here(target: Target) -> bool:
    """Whether this machine has a GPU that is the target."""
    return bool(matching(target, visible(local_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))))


@contextmanager
def opened(
    target: Target, seed: int, folder: Path, gpus: int | None, ray: str | None, constants: Constants | None = None
) -> Iterator[tuple[Backend, ...]]:
    """The devices of one session, closed again at its end. AMK708 if the Ray cluster at `ray` cannot be used."""
    with ExitStack() as stack:
        if ray is None:
            found = backends_for(target, seed, folder, gpus or 1, constants)
        else:
            found = _servers(stack, target, gpus, ray)
        for backend in found:
            stack.callback(backend.close)
        yield found


def _servers(stack: ExitStack, target: Target, gpus: int | None, address: str) -> tuple[Backend, ...]:
    try:
        from amk.agent.device import ray_backend
    except ImportError as error:
        message = "--ray needs Ray, which is not installed"
        raise AmkError(Diagnostic("AMK708", message, help="pip install 'amk[ray]'")) from error
    stack.enter_context(ray_backend.cluster(address))
    return tuple(ray_backend.device_servers(partial(ray_backend.gpu_of_actor, target), gpus))


def recorded_points(state: State) -> tuple[dict[str, Any], ...]:
    """The proposals of a run, for replay: settings, and edits under `edits`."""
    return tuple({**t.proposed.settings, "edits": list(t.proposed.edits)} for t in state.trials)


def gate_of(workshop: Workshop, jobs: int, runs: bool) -> Gate:
    """Judges with what is installed, in so many processes of its own."""
    return GatePool.of(workshop, jobs, runs)


def loop_of(journal: Journal, backends: Sequence[Backend], proposer: Proposer, jobs: int = 1) -> Loop:
    """The loop of a run that was begun."""
    run = journal.state.run
    assert run is not None
    inbox = Inbox(journal.folder / INBOX)
    workshop = workshop_of(journal.state)

    def arrived() -> Sequence[Suggestion]:
        """Notes are written down, suggestions handed on."""
        known = {note.handle: note.author for note in journal.state.notes if note.handle is not None}
        for letter in inbox.notes(known):
            journal.append(
                Noted(author=letter.author, text=letter.text, evals=journal.state.evals, handle=letter.handle)
            )
        return inbox.take(journal.state.handles)

    if isinstance(proposer, Llm):
        proposer.arrived = arrived
    return Loop(
        journal, workshop.space(run.start), gate_of(workshop, jobs, not run.simulated), backends, proposer,
        inbox=arrived, judges_unchanged=lambda: runs.check_judges(journal),
    )  # fmt: skip
