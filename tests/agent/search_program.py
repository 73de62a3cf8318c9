"""A driver process for tests that kill it: `search_program.py FOLDER EVALS [server]` runs or resumes a search.

With `server` the simulated processor is a worker process under a supervisor process, as a GPU is.
"""

import sys
from contextlib import closing
from pathlib import Path

from amk.agent.device.device_server import Post, ServerBackend
from amk.agent.device.measure import Backend
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Workshop
from amk.agent.gate.gate import Gate, not_compiled
from amk.agent.journal.events import Limits, SessionStarted
from amk.agent.journal.store import Journal
from amk.agent.propose.evolution import Evolution
from amk.agent.propose.local import Local
from amk.agent.propose.portfolio import Portfolio
from amk.agent.propose.random_draw import RandomDraw
from amk.agent.run.loop import Loop
from amk.models.model import load_model
from amk.planner.settings import PHASED
from amk.planner.space import Space
from amk.targets.target import load_target
from tests.agent import simulated_worker
from tests.agent.conftest import CONTEXT, Blind, fences_kept, start_run


def main(folder: Path, evals: int, backend: Backend | None = None) -> None:
    device, limits = backend or SimulatedBackend("h200", 5), Limits(evals=evals)
    with Journal(folder) as journal, closing(device):
        if journal.state.session is None:
            start_run(journal, device, limits, 5)
        else:
            number = journal.state.session.session + 1
            journal.append(
                SessionStarted(
                    session=number, device=device.device, backend=device.label, simulated=True, limits=limits
                )
            )
        workshop = Workshop(load_model("smollm2-135m"), load_target("h200"), CONTEXT)
        proposer = Portfolio((Local(), Evolution(), RandomDraw()))
        gate = Gate(workshop, fences_kept, not_compiled)
        Loop(journal, Space.around(PHASED), gate, (device,), proposer, neighbourhood=Blind()).run()


def server(folder: Path) -> ServerBackend:
    folder.mkdir(parents=True, exist_ok=True)
    command = (sys.executable, simulated_worker.__file__)
    return ServerBackend(Post("simulated processor", 0, folder / "worker.log", "the only one", command), simulated=True)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    main(place, int(sys.argv[2]), server(place) if "server" in sys.argv[3:] else None)
