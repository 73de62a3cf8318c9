"""From the name of a recorded run to its kernels: rows of `amk bench` or `amk calibrate`, a file that was shared, or a
search's journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from amk.commands.shared_runs import is_shared, kernel_name, shared_runs
from amk.models.matrices import label
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, STARTS, Settings
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json
from amk.schedule_ir.schedule import Schedule
from amk.simulator.calibrate import Run
from amk.targets.target import load_target
from amk.weights.weight_format import FORMATS

Read = TypeVar("Read")

LIMIT = 16 << 20
BENCH_CONTEXT = 8192
BEHIND = 65
"""Cache positions of a recorded row that does not say, and those behind its own where that are too few."""


def measured_runs(names: list[str]) -> list[Run]:
    """Every measured (kernel, position) of the named files and searches; AMK005 if there is none."""
    runs = [run for name in names for run in _runs_of(name)]
    if not runs:
        raise AmkError(Diagnostic("AMK005", f"no measurement in {', '.join(names)}"))
    return runs


def recorded_settings(paths: Sequence[Path], model: str) -> list[Settings]:
    """The kernels of the model in these records of `amk calibrate`; AMK005 if one is no record."""
    rows = (row for path in paths for row in _rows(path, _settings_of_row))
    return [settings for of, settings in rows if of == model]


def _runs_of(name: str) -> Iterator[Run]:
    path = Path(name)
    if path.is_file():
        yield from shared_runs(path) if is_shared(path) else _rows(path, _of_row)
    else:
        yield from _of_search(name)


def _rows(path: Path, of_row: Callable[[dict[str, Any]], Read]) -> Iterator[Read]:
    """What `of_row` makes of every row of a record; AMK005 if it is none."""
    content = read_json(path, LIMIT)
    rows = content.get("rows") if isinstance(content, dict) else None
    try:
        if not isinstance(rows, list):
            raise TypeError("no rows")
        for entry in rows:
            yield of_row(entry["row"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"not a record of measurements: {error}"
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path)))) from error


def _settings_of_row(row: dict[str, Any]) -> tuple[str, Settings]:
    """Model and settings of a row of `amk calibrate`."""
    return str(row["key"]["model"]), settings_of(row["settings"])


def _of_row(row: dict[str, Any]) -> Run:
    """A row of `amk bench` names a preset, one of `amk calibrate` has all settings."""
    key = row["key"]
    model, gpu, pos, ms = str(key["model"]), str(key["gpu"]), int(key["pos"]), float(row["times"]["ms"])
    if "kernel" in row:
        settings, name = settings_of(row["settings"]), f"{model} kernel {row['kernel']}"
    else:
        batch = int(key.get("batch", 1))
        settings = replace(STARTS[key["plan"]], batch=batch)
        name = kernel_name(model, str(key["dtype"]), key["plan"], batch)
    context = row.get("context") or min(max(BENCH_CONTEXT, pos + BEHIND), load_model(model).max_context)
    return Run(f"{name} at {pos}", _planned(model, gpu, settings, context, str(key["dtype"])), pos, ms)


def settings_of(values: dict[str, Any]) -> Settings:
    """Settings by field name; those that are absent keep their default."""
    return replace(FAST, **(values | {"plan": "search"}))


@cache
def _planned(model: str, gpu: str, settings: Settings, context: int, dtype: str) -> Schedule:
    """dtype: as `Schedule.weights_label` names it."""
    weights, _, kept = dtype.partition("-kv-")
    wanted = {label(forms): forms for one in FORMATS for head in FORMATS if (forms := formats(one, head))}[weights]
    settings = replace(settings, kv_dtype=kept) if kept else settings  # type: ignore[arg-type]
    return plan(load_model(model), load_target(gpu), settings=settings, formats=wanted, max_context=context)


def _of_search(name: str) -> Iterator[Run]:
    """The measured proposals of a search on a GPU; AMK005 for a simulated one."""
    from amk.agent.journal.store import read_state
    from amk.agent.run.reports import candidate_of
    from amk.agent.run.runs import find

    state = read_state(find(name))
    run = state.run
    if run is None or run.simulated:
        raise AmkError(Diagnostic("AMK005", f"run {name} was simulated: it measured nothing"))
    for trial in state.trials:
        candidate = candidate_of(state, trial.index) if trial.measured else None
        if candidate is None:
            continue
        measured = trial.measured.get("confirm") or next(iter(trial.measured.values()))
        for pos, ms in zip(run.positions, measured.candidate_ms, strict=True):
            yield Run(f"{run.model} proposal {trial.index} at {pos}", candidate.schedule, pos, ms)
