"""Runs of the search on a small model, with a certifier that is part of the test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amk.agent.decide.neighbourhood import Neighbourhood
from amk.agent.device.measure import Backend, positions_within
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Workshop
from amk.agent.gate.gate import Gate, not_compiled
from amk.agent.journal.events import Limits, RunStarted, SessionStarted
from amk.agent.journal.store import Journal
from amk.agent.propose.base import Context, Proposer
from amk.agent.propose.random_draw import RandomDraw
from amk.agent.run.loop import Loop
from amk.models.model import load_model
from amk.planner.search import Problem
from amk.planner.settings import PHASED, Settings
from amk.planner.space import Space
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.agent.rules import fences_kept as fences_kept

CONTEXT = 2048
MakeLoop = Callable[..., Loop]


@pytest.fixture(scope="session", autouse=True)
def programs_known() -> Iterator[None]:
    """Searches of many tests look at the neighbours of one start: which program settings lower to, and what the
    simulator says of a schedule, is found once by the process. Both depend on what they are given alone."""
    keys: dict[Any, str | None] = {}
    times: dict[Any, tuple[float, ...]] = {}
    key_of, times_of = Workshop.key, Problem.times

    def key(self: Workshop, settings: Settings) -> str | None:
        place = repr(self.__reduce__()[1]), settings
        if place not in keys:
            keys[place] = key_of(self, settings)
        return keys[place]

    def simulated(self: Problem, schedule: Schedule) -> tuple[float, ...]:
        place = schedule_hash(schedule), self.positions, repr(self.constants)
        if place not in times:
            times[place] = times_of(self, schedule)
        return times[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workshop, "key", key)
        patch.setattr(Problem, "times", simulated)
        yield


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    return Workshop(load_model("smollm2-135m"), load_target("h200"), CONTEXT)


def start_run(journal: Journal, backend: Backend, limits: Limits, seed: int = 0, prior: bool = True) -> None:
    space = Space.around(PHASED)
    journal.append(
        RunStarted(
            run="test", model="smollm2-135m", target="h200", dtype="bf16", context=CONTEXT,
            positions=positions_within(CONTEXT), start="phased", settings=space.point(space.start), seed=seed,
            proposer="random", backend=backend.label, simulated=backend.simulated, limits=limits, manifest="",
            version="", prior=prior,
        )
    )  # fmt: skip
    session = SessionStarted(
        session=1, device=backend.device, backend=backend.label, simulated=backend.simulated, limits=limits
    )
    journal.append(session)


class Blind(Neighbourhood):
    """Says nothing of what is left near the best, which takes a hundred lowerings."""

    def look(self, context: Context, last: bool) -> None:
        return None


def looped(
    workshop: Workshop, folder: Path, proposer: Proposer | None = None, backend: Backend | None = None,
    evals: int = 10, dollars: float = 0.0, seed: int = 0, survey: bool = False,
) -> Loop:  # fmt: skip
    """The loop of the run in `folder`, which is begun if there is none. survey: what is left near the best is looked
    at, as every search does."""
    journal = Journal(folder)
    device = backend or SimulatedBackend("h200", seed)
    if journal.state.run is None:
        start_run(journal, device, Limits(evals=evals, dollars=dollars), seed)
    gate = Gate(workshop, fences_kept, not_compiled)
    around = Neighbourhood() if survey else Blind()
    return Loop(journal, Space.around(PHASED), gate, (device,), proposer or RandomDraw(), neighbourhood=around)


@pytest.fixture
def make_loop(tmp_path: Path, workshop: Workshop) -> MakeLoop:
    def make(*arguments: Any, folder: Path | None = None, **more: Any) -> Loop:
        return looped(workshop, folder or tmp_path / "run", *arguments, **more)

    return make
