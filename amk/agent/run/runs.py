"""Runs on disk: where they live, how one is started, found and taken up again."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from amk.agent.device.measure import Backend, positions_within
from amk.agent.gate.candidate import Impossible, workshop_of
from amk.agent.journal import budget
from amk.agent.journal.copies import damaged
from amk.agent.journal.events import Limits, RunStarted, SessionStarted
from amk.agent.journal.inbox import write_whole
from amk.agent.journal.state import State
from amk.agent.journal.store import Journal, exists, is_busy, read_state
from amk.agent.run import manifest
from amk.models.model import shipped_models
from amk.report.diagnostic import AmkError, Diagnostic
from amk.simulator.constants import Constants
from amk.simulator.floor import simulated_floor_ms
from amk.version import __version__
from amk.weights.weight_format import FormatName

MANIFEST = "manifest.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


def runs_directory() -> Path:
    """`$AMK_RUNS`, else the user's data directory (XDG)."""
    folder = os.environ.get("AMK_RUNS")
    return Path(folder) if folder else Path(platformdirs.user_data_dir("amk")) / "runs"


@dataclass(frozen=True)
class Plan:
    """What the user asked for; everything of it that matters for results goes into the journal."""

    model: str
    target: str
    context: int
    start: str
    seed: int
    proposer: str
    llm_model: str | None
    limits: Limits
    dtype: FormatName = "bf16"
    lm_head_dtype: FormatName | None = None
    prior: bool = True
    batch: int = 1
    constants: Constants | None = None


def create(plan: Plan, root: Path | None = None) -> Journal:
    """The folder and the empty journal of a new run. AMK011, and nothing is written, if its start cannot be planned."""
    workshop = workshop_of(plan)
    candidate = workshop.make(workshop.space(plan.start).start)
    if isinstance(candidate, Impossible):
        raise AmkError(Diagnostic("AMK011", f"the schedule to start from cannot be planned: {candidate.detail}"))
    base = root or runs_directory()
    name = f"{workshop.model.name[:40]}-{plan.target}-{secrets.token_hex(2)}"
    return Journal(base / f"{time.strftime('%Y%m%d-%H%M%S')}-{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}")


def model_named(name_or_path: str) -> str:
    """How a run names its model, whatever it was called: the shipped name, or the whole path."""
    shipped = (name for name in shipped_models() if name.lower() == name_or_path.lower())
    return next(shipped, None) or str(Path(name_or_path).absolute())


def start(journal: Journal, plan: Plan, backends: Sequence[Backend]) -> None:
    """Write the first event, then the manifest that it names: a manifest without events means that they were lost."""
    if (journal.folder / MANIFEST).exists():
        raise damaged(journal.folder, "the run was begun, and neither copy of the journal holds an event")
    frozen = manifest.freeze()
    workshop = workshop_of(plan)
    space, positions = workshop.space(plan.start), positions_within(plan.context)
    candidate = workshop.make(space.start)
    floors: tuple[float, ...] = ()
    if not isinstance(candidate, Impossible):
        floors = tuple(simulated_floor_ms(candidate.schedule, pos, plan.constants) for pos in positions)
    first = RunStarted(
        run=journal.folder.name, model=plan.model, target=plan.target, dtype=plan.dtype,
        lm_head_dtype=plan.lm_head_dtype, context=plan.context, positions=positions,
        start=plan.start, settings=space.point(space.start),
        seed=plan.seed, proposer=plan.proposer, llm_model=plan.llm_model, backend=backends[0].label,
        simulated=backends[0].simulated, limits=plan.limits, manifest=manifest.digest(frozen), version=__version__,
        prior=plan.prior, batch=plan.batch, floor_ms=floors, constants=plan.constants,
    )  # fmt: skip
    journal.append(first)
    begin(journal, backends, plan.limits)


def begin(journal: Journal, backends: Sequence[Backend], limits: Limits) -> None:
    """Write down that this process took the run. AMK703 if its judges are not those of the run."""
    check_judges(journal)
    before = journal.state.session
    number = before.session + 1 if before is not None else 1
    journal.append(
        SessionStarted(
            session=number,
            device=", ".join(b.device for b in backends),
            backend=backends[0].label,
            simulated=backends[0].simulated,
            limits=limits,
            changed=budget.changes(journal.state.limits, limits),
        )
    )


def check_judges(journal: Journal) -> None:
    """AMK703 if validator, oracle or harness differ from the manifest, or the manifest from the journal. What was ended
    before it wrote the manifest writes the one that its journal names."""
    path, run = journal.folder / MANIFEST, journal.state.run
    if not path.exists() and run is not None and manifest.digest(now := manifest.freeze()) == run.manifest:
        write_whole(path, json.dumps(now, indent=1))
    try:
        frozen: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AmkError(Diagnostic("AMK704", f"the manifest of the run cannot be read: {error}")) from error
    if run is None or manifest.digest(frozen) != run.manifest:
        raise AmkError(Diagnostic("AMK703", "the manifest was changed after the run was started"))
    manifest.check(frozen, manifest.freeze())


def folders(root: Path | None = None) -> list[Path]:
    """Those of all runs, newest first."""
    base = root or runs_directory()
    found = [path for path in base.iterdir() if exists(path)] if base.is_dir() else []
    return sorted(found, key=lambda path: path.name, reverse=True)


def all_runs(root: Path | None = None) -> Iterator[tuple[Path, State | AmkError]]:
    """Every run, newest first; a damaged one is listed with its error."""
    for folder in folders(root):
        try:
            yield folder, read_state(folder)
        except AmkError as error:
            yield folder, error


def find(name: str, root: Path | None = None) -> Path:
    """The folder of a run by its name or the start of it; AMK701 otherwise."""
    base = root or runs_directory()
    if _NAME.fullmatch(name) and base.is_dir():
        exact = base / name
        if exists(exact):
            return exact
        near = [p for p in base.iterdir() if p.name.startswith(name) and exists(p)]
        if len(near) == 1:
            return near[0]
    help_line = "`amk runs` lists the runs"
    raise AmkError(Diagnostic("AMK701", f"there is no run '{name[:80]}' in {base}", help=help_line))


def about(model: str, target: str, root: Path | None = None) -> list[tuple[Path, State]]:
    """The runs of a model on a GPU, newest first; damaged ones are left out."""
    return [
        (folder, state)
        for folder, state in all_runs(root)
        if not isinstance(state, AmkError) and state.run is not None
        and (model_named(state.run.model), state.run.target) == (model_named(model), target)
    ]  # fmt: skip


def status(folder: Path, state: State) -> str:
    if is_busy(folder):
        return "running"
    return "finished" if state.finished is not None else "interrupted"
