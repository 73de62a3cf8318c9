"""A driver process for tests that kill it: `search_program.py FOLDER EVALS` runs or resumes a simulated search."""

import sys
from pathlib import Path

from amk.agent.candidate import Workshop
from amk.agent.events import Limits, SessionStarted
from amk.agent.gate import Gate, not_compiled
from amk.agent.journal import Journal
from amk.agent.loop import Loop
from amk.agent.propose.evolution import Evolution
from amk.agent.propose.local import Local
from amk.agent.propose.portfolio import Portfolio
from amk.agent.propose.random_draw import RandomDraw
from amk.agent.simulated import SimulatedBackend
from amk.planner.settings import NAIVE
from amk.planner.space import Space
from amk.schedule_ir.model import load_model
from amk.schedule_ir.target import load_target
from tests.agent.conftest import CONTEXT, fences_kept, start_run


def main(folder: Path, evals: int) -> None:
    backend, limits = SimulatedBackend("h200", 5), Limits(evals=evals)
    with Journal(folder) as journal:
        if journal.state.session is None:
            start_run(journal, backend, limits, 5)
        else:
            number = journal.state.session.session + 1
            journal.append(
                SessionStarted(
                    session=number, device=backend.device, backend=backend.label, simulated=True, limits=limits
                )
            )
        workshop = Workshop(load_model("smollm2-135m"), load_target("h200"), CONTEXT)
        proposer = Portfolio((Local(), Evolution(), RandomDraw()))
        Loop(journal, Space.around(NAIVE), Gate(workshop, fences_kept, not_compiled), (backend,), proposer).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
