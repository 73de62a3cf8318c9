"""Plans as decisions: the few knobs in which a plan differs from the default, from which it expands deterministically.

Two stores of them: the ready-made ones that are shipped, and a cache of the user's own searches. A cached entry's name
is a hash of everything that the result depends on: model, target with its constants, formats, context, positions,
knobs, version of the program, and what was asked of the search. If any of it changes, the name does.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.models.model_spec import ModelSpec
from amk.planner.formats import label_of
from amk.planner.search import Problem, SearchResult, State
from amk.planner.settings import FAST, Settings
from amk.planner.space import OutsideSpaceError, Space
from amk.report.diagnostic import AmkError, Diagnostic
from amk.report.json_file import read_json
from amk.report.schema import schema_error
from amk.simulator.constants import constants_for
from amk.targets.target import Target
from amk.version import __version__

MOST_BYTES = 4096
"""Of one plan's decisions."""

FILE_BYTES = 1 << 20

SHIPPED = Path(str(files("amk.planner") / "decisions.json"))

PLANNER_VERSION = 6
SIMULATOR_VERSION = 5
SEARCH_VERSION = 5
"""Raised when settings expand to other schedules, or times are predicted by other mechanisms: decisions of an earlier
version are stale. Version 2: plans that cannot compile are refused; refills that are held back are simulated. Version
3: the naive plan has four warps, down in parts is a choice; loads wait for copies in flight by their square. Version
4: order of steps, who attends, who polls and the narrow hand-off are choices, and switches are tried first. Version 5
of the planner: hints of bf16 plans come before what they announce; long products of codes of four bits alone are
copied 2 KB at a time. Version 6: short products of bf16 are refilled early, 4 KB at a time. Version 5 of the
simulator: loads wait for the copies in flight when they are asked for, by their number, SMs that are due early delay
nobody, polls of a counter are answered one after the other, and short fetches of a hand-off cost what long ones do.

That of the search is raised when it finds other plans of the same space: what is cached is searched again, what is
shipped stays valid. Version 2: every choice is tried by itself first. Version 3: the default plans that it is compared
with look sooner for words where codes have eight bits. Version 4: those of batches below eight are
others. Version 5: those of codes of four bits in long products, of int8 in short ones and of batches are others, and
which words have hints is a choice."""


class Decisions(BaseModel):
    """`changes`: knob values that differ from the default plan. ms, default_ms: simulated, at `positions`.

    default_ms, naive_ms are empty where there is no such plan. The verdict was SAFE for the schedule with the hash
    `schedule`. key: what they depend on, see `ready_key`.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    model: str
    target: str
    dtype: str
    context: int
    changes: dict[str, int | float | bool | str | None]
    positions: tuple[int, ...] = Field(strict=False)
    ms: tuple[float, ...] = Field(strict=False)
    default_ms: tuple[float, ...] = Field(strict=False)
    naive_ms: tuple[float, ...] = Field(strict=False)
    expansions: int
    seed: int
    schedule: str
    key: str

    def settings(self, start: Settings = FAST) -> Settings:
        """start: what the search began with, the fast plan. AMK005 if the planner has no such knobs any more."""
        try:
            return Space.around(start).parse(self.changes)
        except OutsideSpaceError as error:
            raise AmkError(Diagnostic("AMK005", f"decisions of another version: {error}")) from error


def decisions_of(problem: Problem, result: SearchResult, seed: int) -> Decisions:
    space = Space.around(FAST)
    best, default, naive = result.best, result.default, result.naive
    return Decisions(
        model=problem.model.name, target=problem.target.name, dtype=label_of(problem.runs),
        context=result.schedule.kv.context, changes=space.changes(best.settings, space.start),
        positions=problem.positions, ms=_rounded(best), default_ms=_rounded(default), naive_ms=_rounded(naive),
        expansions=result.expansions, seed=seed, schedule=best.key,
        key=ready_key(problem.model, problem.target, label_of(problem.runs)),
    )  # fmt: skip


def _rounded(state: State | None) -> tuple[float, ...]:
    return tuple(round(t, 6) for t in state.ms) if state else ()


def ready_key(model: ModelSpec, target: Target, dtype: str) -> str:
    """Hash of what shipped decisions depend on: model, target, format, and the versions of planner and simulator."""
    content = {
        "model": model.model_dump(mode="json"), "target": target.model_dump(mode="json"), "dtype": dtype,
        "planner": PLANNER_VERSION, "simulator": SIMULATOR_VERSION,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def ready_made(model: str, target: str, dtype: str) -> Decisions | None:
    """The shipped decisions for these names, if there are any."""
    return next((d for d in shipped() if (d.model, d.target, d.dtype) == (model, target, dtype)), None)


def shipped(path: Path = SHIPPED) -> tuple[Decisions, ...]:
    """The decisions of a file; none if there is no such file."""
    if not path.exists():
        return ()
    try:
        return tuple(Decisions.model_validate(entry) for entry in read_json(path, FILE_BYTES))
    except ValidationError as error:
        raise schema_error(error, str(path)) from error


def cache_directory() -> Path:
    """`$AMK_CACHE`, else the user's cache directory."""
    folder = os.environ.get("AMK_CACHE")
    return (Path(folder) if folder else Path(platformdirs.user_cache_dir("amk", appauthor=False))) / "plans"


def cache_key(problem: Problem, request: dict[str, Any], start: Settings = FAST) -> str:
    """sha256 of everything that the result depends on; `request`: seed, expansions, budget; start: where it begins."""
    constants = problem.constants or constants_for(problem.target)
    space = Space.around(start)
    stored = [[count, dict(forms)] for count, forms in problem.runs]
    content = {
        "model": problem.model.model_dump(mode="json"), "target": problem.target.model_dump(mode="json"),
        "constants": constants.model_dump(mode="json"), "dtype": stored, "context": problem.context,
        "positions": problem.positions, "knobs": {k.name: k.values for k in space.knobs},
        "default": asdict(space.start), "asked": request,
        "version": (__version__, PLANNER_VERSION, SIMULATOR_VERSION, SEARCH_VERSION),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def cached(key: str) -> Decisions | None:
    """None if there is no such entry, or if it cannot be read: then it is searched again."""
    path = cache_directory() / f"{key}.json"
    try:
        return Decisions.model_validate(read_json(path, MOST_BYTES)) if path.is_file() else None
    except (AmkError, ValidationError):
        return None


def keep(key: str, decisions: Decisions) -> None:
    """Write the entry whole or not at all; a cache that cannot be written is no error."""
    path = cache_directory() / f"{key}.json"
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(decisions.model_dump_json())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
