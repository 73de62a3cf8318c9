"""Runs of the search on a small model, with a certifier that is part of the test."""

from collections.abc import Callable
from pathlib import Path

import pytest

from amk.agent.candidate import Workshop
from amk.agent.events import Limits, RunStarted, SessionStarted
from amk.agent.gate import Gate, not_compiled
from amk.agent.journal import Journal
from amk.agent.loop import Loop
from amk.agent.measure import Backend, positions_within
from amk.agent.propose.base import Proposer
from amk.agent.propose.random_draw import RandomDraw
from amk.agent.simulated import SimulatedBackend
from amk.planner.settings import PHASED
from amk.planner.space import Space
from amk.schedule_ir.model import load_model
from amk.schedule_ir.target import load_target
from tests.agent.rules import fences_kept as fences_kept

CONTEXT = 2048
MakeLoop = Callable[..., Loop]


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    return Workshop(load_model("smollm2-135m"), load_target("h200"), CONTEXT)


def start_run(journal: Journal, backend: Backend, limits: Limits, seed: int = 0) -> None:
    space = Space.around(PHASED)
    journal.append(
        RunStarted(
            run="test", model="smollm2-135m", target="h200", dtype="bf16", context=CONTEXT,
            positions=positions_within(CONTEXT), start="phased", settings=space.point(space.start), seed=seed,
            proposer="random", backend=backend.label, simulated=backend.simulated, limits=limits, manifest="",
            version="",
        )
    )  # fmt: skip
    session = SessionStarted(
        session=1, device=backend.device, backend=backend.label, simulated=backend.simulated, limits=limits
    )
    journal.append(session)


@pytest.fixture
def make_loop(tmp_path: Path, workshop: Workshop) -> MakeLoop:
    def make(
        proposer: Proposer | None = None, backend: Backend | None = None, evals: int = 10, dollars: float = 0.0,
        seed: int = 0, folder: Path | None = None,
    ) -> Loop:  # fmt: skip
        journal = Journal(folder or tmp_path / "run")
        device = backend or SimulatedBackend("h200", seed)
        if journal.state.run is None:
            start_run(journal, device, Limits(evals=evals, dollars=dollars), seed)
        gate = Gate(workshop, fences_kept, not_compiled)
        return Loop(journal, Space.around(PHASED), gate, (device,), proposer or RandomDraw())

    return make
