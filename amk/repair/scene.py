"""What the search for a fix knows: the schedule as JSON, and the steps that the finding is about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amk.adversary.edits import Edit, Json, Path, at, steps
from amk.schedule_ir.schedule import Schedule
from amk.trace.steps import Steps
from amk.validator.evidence.confirm import Evidence
from amk.validator.induction.layers import reduce_layers
from amk.validator.memory.composition import TOKENS
from amk.validator.program.trace import trace
from amk.validator.verify import Verdict

MAX_STEPS = 400
"""Steps looked at, nearest to the finding first."""


@dataclass(frozen=True)
class Candidate:
    """Edits in words; whether they help is not known yet."""

    description: str
    edits: list[Edit]


@dataclass(frozen=True, eq=False)
class Scene:
    """document: the schedule's JSON with all defaults. places: paths of the steps in the finding, most guilty first."""

    schedule: Schedule
    document: Json
    verdict: Verdict
    places: tuple[Path, ...]

    @property
    def codes(self) -> list[str]:
        return [d.code for d in self.verdict.diagnostics]

    @cached_property
    def near(self) -> list[tuple[Path, Json]]:
        """Every step, those close to a place of the finding first."""
        places = list(steps(self.document))
        return sorted(places, key=lambda entry: self._distance(entry[0]))[:MAX_STEPS]

    def _distance(self, path: Path) -> tuple[int, int]:
        same = [abs(int(path[-1]) - int(place[-1])) for place in self.places if place[:-1] == path[:-1]]
        return (0, min(same)) if same else (1, 0)

    def at(self, path: Path) -> Json:
        return at(self.document, path)

    def role_size(self, name: str) -> int:
        return next(int(r["count"]) for r in self.document["roles"] if r["name"] == name)

    def entries(self, kind: str) -> Iterator[tuple[Path, Json]]:
        """Every wait or signal ("waits", "signals"), nearest first."""
        for path, step in self.near:
            for i, entry in enumerate(step[kind]):
                yield (*path, kind, i), entry

    def step_name(self, path: Path) -> str:
        """`gemv down (step 23)`."""
        op = self.at(path)["op"]
        return f"{op['op']} {op.get('matrix', '')}".strip() + f" (step {path[-1]})"


def scene(schedule: Schedule, verdict: Verdict) -> Scene:
    document: Any = json.loads(schedule.model_dump_json())
    paths: list[Path] = []
    if verdict.evidence is not None:
        paths += _witnessed(schedule, verdict.evidence)
    for diagnostic in verdict.diagnostics:
        pointer = (diagnostic.where.path if diagnostic.where else None) or ""
        paths.append(_step_of(document, pointer))
    return Scene(schedule, document, verdict, tuple(dict.fromkeys(path for path in paths if path)))


def _witnessed(schedule: Schedule, evidence: Evidence) -> list[Path]:
    """Steps of the events that the witness names."""
    reduced = reduce_layers(schedule)
    traces = [trace(reduced, number, TOKENS) for number in range(len(reduced.programs))]
    named = Steps(reduced, evidence.system, traces)
    events = [row[1] for row in evidence.witness.wait_cycle] or evidence.witness.events
    paths = []
    for event in events:
        if named.real(event):
            worker, _ = named.place(event)
            local = named.trace(worker)
            paths.append(local.items[int(local.item[int(evidence.system.event_tag[event])])].site.path)
    return paths


def _step_of(document: Json, pointer: str) -> Path:
    """The step that encloses a JSON pointer, () if none does."""
    path: list[str | int] = []
    value = document
    best: Path = ()
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            if not key.isdecimal() or int(key) >= len(value):
                break
            path.append(int(key))
        elif isinstance(value, dict) and key in value:
            path.append(key)
        else:
            break
        value = value[path[-1]]
        if isinstance(value, dict) and isinstance(value.get("op"), dict):
            best = tuple(path)
    return best
