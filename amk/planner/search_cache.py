"""The cache of a user's own searches: each plan as the few settings in which it differs from the default.

The name of an entry is a hash of everything that the result of the search depends on: model, target with its constants,
formats, context, positions, settings, version of the program, and the request. If any of it changes, the name does.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.planner.search import Problem, SearchResult, State
from amk.planner.settings import FAST, Settings
from amk.planner.space import OutsideSpaceError, Space
from amk.report.diagnostic import AmkError, Diagnostic
from amk.report.json_file import read_json
from amk.simulator.constants import constants_for
from amk.version import __version__

MOST_BYTES = 4096
"""Of an entry."""

SEARCH_VERSION = 6
"""Raised when the same request finds another plan: because settings expand to other schedules, because the simulator
predicts other times, or because the search looks elsewhere."""


class Decisions(BaseModel):
    """What a search chose.

    `changes`: the settings that differ from the plan that it began with. ms, default_ms: simulated, at `positions`;
    default_ms is empty where there is no default plan. schedule: hash of the plan, which was judged SAFE.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    changes: dict[str, int | float | bool | str | None]
    positions: tuple[int, ...] = Field(strict=False)
    ms: tuple[float, ...] = Field(strict=False)
    default_ms: tuple[float, ...] = Field(strict=False)
    expansions: int
    seed: int
    schedule: str

    def settings(self, start: Settings = FAST) -> Settings:
        """start: what the search began with. AMK005 if the planner has no such settings any more."""
        try:
            return Space.around(start).parse(self.changes)
        except OutsideSpaceError as error:
            raise AmkError(Diagnostic("AMK005", f"decisions of another version: {error}")) from error


def decisions_of(problem: Problem, result: SearchResult, seed: int) -> Decisions:
    space = Space.around(FAST)
    return Decisions(
        changes=space.changes(result.best.settings, space.start), positions=problem.positions,
        ms=_rounded(result.best), default_ms=_rounded(result.default), expansions=result.expansions, seed=seed,
        schedule=result.best.key,
    )  # fmt: skip


def _rounded(state: State | None) -> tuple[float, ...]:
    return tuple(round(t, 6) for t in state.ms) if state else ()


def cache_directory() -> Path:
    """`$AMK_CACHE`, else the user's cache directory."""
    folder = os.environ.get("AMK_CACHE")
    return (Path(folder) if folder else Path(platformdirs.user_cache_dir("amk", appauthor=False))) / "plans"


def cache_key(problem: Problem, request: dict[str, Any], start: Settings = FAST) -> str:
    """sha256 of everything that the result depends on.

    `request`: seed, expansions, budget. start: the settings that the search begins with.
    """
    constants = problem.constants or constants_for(problem.target)
    space = Space.around(start)
    stored = [[count, dict(forms)] for count, forms in problem.runs]
    content = {
        "model": problem.model.model_dump(mode="json"), "target": problem.target.model_dump(mode="json"),
        "constants": constants.model_dump(mode="json"), "dtype": stored, "context": problem.context,
        "positions": problem.positions, "knobs": {k.name: k.values for k in space.knobs},
        "default": asdict(space.start), "asked": request, "version": (__version__, SEARCH_VERSION),
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
