"""How long `amk report` takes for a long run, as a process, by the clock and by the processor.

    python -m tests.agent.report_time --record tests/records/search/report-time.json

The journal is made here: real designs of the model (knobs and edits, of which the best has several), with measurements
that are drawn. So report, timeline, ablation and what is left near the best are of real schedules. `again`: nothing of
an earlier report is left, as after a crash or while a session runs; `kept`: the session has written its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate, Workshop, workshop_of
from amk.agent.gate.design import Design, difference, text_of
from amk.agent.journal.events import (
    AnyEvent,
    Calibrated,
    Decided,
    Gated,
    LeaseReserved,
    Limits,
    Measured,
    Phase,
    Proposed,
)
from amk.agent.journal.state import START, State
from amk.agent.journal.store import read_state
from amk.agent.report.stored_report import REPORT
from amk.agent.run import reports, runs
from amk.bench.tools.provenance import software
from amk.planner.space import Space
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits.directed import KINDS, Hot
from amk.simulator.predict import step_ms

EVALUATIONS = 1000
KEPT_AT = (5, 40, 90, 200, 420, 700)
"""Evaluations that are kept: a change of the best each."""
TESTED = 12
"""One in so many has a paired test."""
NOISE = 0.001
RUNS = (("llama3.2-1b", "h200", "int8"), ("llama3-8b", "h200", "bf16"))
TIMES = 7
Note = Callable[[AnyEvent], None]


@dataclass
class Drawn:
    """Designs around the best, drawn; `best` grows with every keep."""

    space: Space
    workshop: Workshop
    best: Design
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    places: dict[Design, Hot] = field(default_factory=dict)

    def changed(self) -> Design:
        """The best with another knob, or with an edit of it."""
        if self.rng.random() < 0.5:
            return Design(self.space.mutate(self.best.settings, self.rng), self.best.edits)
        if self.best not in self.places:
            candidate = self.workshop.make(self.best)
            assert isinstance(candidate, Candidate)
            self.places[self.best] = Hot(candidate.schedule, self.rng)
        while True:
            try:
                edits = KINDS[str(self.rng.choice([*KINDS]))](self.places[self.best])
            except (LookupError, AmkError):
                continue
            texts = tuple(map(text_of, edits))
            if texts and not {*texts} & {*self.best.edits}:
                return Design(self.best.settings, (*self.best.edits, *texts))

    def running(self) -> Design:
        """One that the simulator brings to its end."""
        while True:
            design = self.changed()
            candidate = self.workshop.make(design)
            try:
                if isinstance(candidate, Candidate) and step_ms(candidate.schedule, 128):
                    return design
            except AmkError:
                continue


def fill(note: Note, state: State, workshop: Workshop, evaluations: int) -> None:
    """Trials of `evaluations` measured designs, and a refused one for every eighth."""
    run = state.run
    assert run is not None
    space = workshop.space(run.start)
    drawn = Drawn(space, workshop, Design(space.start))
    ms = tuple(0.5 + pos / 1e5 for pos in run.positions)
    note(Calibrated(session=1, device="drawn", mad=NOISE, incumbent_ms=ms))
    best, score = START, 0.0
    kept_at = {round(at * evaluations / EVALUATIONS) for at in KEPT_AT}
    for number in range(evaluations):
        kept = number in kept_at
        design = drawn.running() if kept else drawn.changed()
        index = len(state.trials)
        note(_proposed(space, index, design, drawn.best, best))
        if number % 8 == 7:
            note(Gated(index=index, verdict="unsafe", codes=("AMK305",), detail="drawn"))
            index += 1
            note(_proposed(space, index, design, drawn.best, best))
        note(Gated(index=index, verdict="passed", key=f"{index:064x}", kernel=f"{index:064x}"))
        gain = 0.012 if kept else float(drawn.rng.normal(-0.01, 0.008))
        phases: tuple[Phase, ...] = ("pilot", "paired test", "confirm") if kept else ("pilot",)
        for phase in ("pilot", "paired test") if number % TESTED == 0 and not kept else phases:
            note(LeaseReserved(index=index, phase=phase, attempt=1, device="drawn", seconds=0.0))
            note(_measured(index, phase, gain, best, ms, drawn.rng))
        outcome, reason = ("kept", "faster") if kept else ("rejected", f"pilot: {gain:+.2%}, more is needed")
        note(Decided(index=index, outcome=outcome, reason=reason, log_gain=gain, bound=0.0, score=score - gain))
        if kept:
            drawn.best, best, score = design, index, score - gain


def _proposed(space: Space, index: int, design: Design, base: Design, parent: int) -> Proposed:
    edit = difference(design, base, dict(space.changes(design.settings, base.settings)))
    return Proposed(
        index=index, proposer="structure" if design.edits else "sweep", settings=dict(space.point(design.settings)),
        why="where the simulator sees time lost, and worth what its parts sum up to", parent=parent, edit=edit,
        edits=design.edits, operator="move" if design.edits else "", key=f"{index:064x}",
    )  # fmt: skip


def _measured(
    index: int, phase: Phase, gain: float, against: int, ms: tuple[float, ...], rng: np.random.Generator
) -> Measured:
    ratios = tuple(float(x) for x in rng.normal(-gain, NOISE, 6 if phase == "pilot" else 24))
    return Measured(
        index=index, phase=phase, attempt=1, seconds=1.5, log_ratios=ratios, incumbent_ms=ms,
        candidate_ms=tuple(each * float(np.exp(-gain)) for each in ms), against=against, device="drawn",
    )  # fmt: skip


def folder_of_run(root: Path, model: str, target: str, dtype: Any, evaluations: int) -> Path:
    """The folder of a run that was ended in the middle."""
    plan = runs.Plan(
        model=model, target=target, context=8192, start="fast", seed=0, proposer="portfolio", llm_model=None,
        limits=Limits(minutes=60.0), dtype=dtype,
    )  # fmt: skip
    with runs.create(plan, root) as journal:
        runs.start(journal, plan, (SimulatedBackend(target),))
        assert journal.state.run is not None
        fill(journal.append, journal.state, workshop_of(journal.state.run), evaluations)
        return journal.folder


def timed(folder: Path) -> tuple[float, float]:
    """Seconds by the clock and of a processor of one `amk report`."""
    environment = {**os.environ, "AMK_RUNS": str(folder.parent)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "amk", "report", folder.name]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(time.monotonic() - began, 2), round(used, 2)


def row(folder: Path) -> dict[str, Any]:
    """Times of a report that is made again, and of one that the session left."""
    found: dict[str, list[tuple[float, float]]] = {"again": [], "kept": []}
    timed(folder)  # Python compiles its modules once
    for _ in range(TIMES):
        (folder / REPORT).unlink(missing_ok=True)
        found["again"].append(timed(folder))
    state = read_state(folder)
    assert state.run is not None
    reports.write_report(folder, state)
    found["kept"] = [timed(folder) for _ in range(TIMES)]
    best = state.trials[state.best].proposed
    durations = {
        name: {
            "wall seconds": median(wall for wall, _ in times), "wall spread": _ends([wall for wall, _ in times]),
            "processor seconds": median(used for _, used in times), "processor spread": _ends([u for _, u in times]),
        }
        for name, times in found.items()
    }  # fmt: skip
    run = state.run
    return {
        "model": run.model, "target": run.target, "dtype": run.dtype, "evaluations": state.evals,
        "proposals": len(state.trials), "keeps": len(state.curve), "edits of the best": len(best.edits),
        "report bytes": (folder / REPORT).stat().st_size, **durations, "load": os.getloadavg()[0],
    }  # fmt: skip


def _ends(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    rows = []
    with TemporaryDirectory() as root:
        for model, target, dtype in RUNS:
            rows.append(row(folder_of_run(Path(root), model, target, dtype, EVALUATIONS)))
            print(json.dumps(rows[-1]), flush=True)
    run = {**software("python -m tests.agent.report_time"), "hardware": f"{os.cpu_count()} cores, no GPU"}
    if options.record is not None:
        text = {"format": 1, "name": "report-time", "rows": rows, "run": run}
        options.record.write_text(json.dumps(text, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
