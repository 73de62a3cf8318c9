"""A schedule while edits are made to it: named nodes and named parts, each looked up by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from amk.report.diagnostic import AmkError, Diagnostic
from amk.report.schema import closest, schema_error
from amk.schedule_ir.edits.tree import Branch, Leaf, body, tree, walk
from amk.schedule_ir.memory import Buffer, Counter, Stream
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Program, Role, Schedule

Entry = Buffer | Counter | Stream | Role | Program
KINDS: dict[str, tuple[str, type[BaseModel]]] = {
    "buffer": ("buffers", Buffer),
    "counter": ("counters", Counter),
    "stream": ("streams", Stream),
    "role": ("roles", Role),
    "program": ("programs", Program),
}
"""Kind of part -> (field of the schedule, its type)."""
M = TypeVar("M", bound=BaseModel)


def refuse(message: str, help: str | None = None) -> NoReturn:
    """An edit does not apply: AMK018, exit 2."""
    raise AmkError(Diagnostic("AMK018", message, help=help))


class Draft:
    """`schedule` is what the draft began as; `done` builds what it has become."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.header: dict[str, Any] = {"launch": schedule.launch, "kv": schedule.kv, "name": schedule.name}
        self.header["plan"] = schedule.plan
        self.tables = dict(schedule.tables)
        self.entries: dict[str, dict[str, Any]] = {
            kind: {e.name: e for e in getattr(schedule, key)} for kind, (key, _) in KINDS.items()
        }
        self.roots = {p.name: tree(p) for p in schedule.programs}

    def node(self, name: str) -> tuple[Branch, Branch | Leaf]:
        """(what it is in, the step or loop of that name); AMK018 if there is none."""
        for root in self.roots.values():
            for parent, node in walk(root):
                if node.name == name:
                    return parent, node
        known = [node.name for root in self.roots.values() for _, node in walk(root)]
        refuse(f"the schedule has no step or loop '{name[:200]}'", closest(name, known))

    def leaf(self, name: str) -> Leaf:
        _, node = self.node(name)
        if isinstance(node, Branch):
            refuse(f"'{name}' is a loop, the edit is about a step")
        return node

    def branch(self, name: str) -> Branch:
        """The loop or program of that name."""
        if name in self.roots:
            return self.roots[name]
        _, node = self.node(name)
        if isinstance(node, Leaf):
            refuse(f"'{name}' is a step, the edit is about a loop")
        return node

    def is_new(self, name: str) -> None:
        """AMK018 if a node is called so."""
        if any(node.name == name for root in self.roots.values() for _, node in walk(root)):
            refuse(f"two edits add '{name[:200]}'")

    def entry(self, kind: str, name: str) -> Any:
        """The buffer, counter, ... of that name; AMK018 if there is none."""
        known = self.entries[kind]
        if name not in known:
            refuse(f"the schedule has no {kind} '{name}'", closest(name, known))
        return known[name]

    def finish(self) -> Schedule:
        """The schedule; AMK0xx if it has no meaning."""
        programs = tuple(
            p.model_copy(update={"body": body(self.roots[p.name])}) for p in self.entries["program"].values()
        )
        fields = self.header | {key: tuple(self.entries[kind].values()) for kind, (key, _) in KINDS.items()}
        fields |= {"programs": programs, "tables": self.tables}
        schedule = valid(lambda: Schedule.model_validate(dict(self.schedule) | fields), "the edited schedule")
        if wrong := check_references(schedule):
            raise AmkError(wrong)
        return schedule


def valid(build: Callable[[], M], what: str) -> M:
    """What `build` builds; a value that the schema does not allow is AMK005."""
    try:
        return build()
    except ValidationError as error:
        raise schema_error(error, what) from error


def changed(model: M, field: str, value: Any, what: str) -> M:
    """The object with one field of another value, checked as one that is read from a file."""
    known = type(model).model_fields
    if field not in known:
        refuse(f"{what} has no field '{field}'", closest(field, known))
    text = json.dumps(model.model_dump(mode="json") | {field: value})
    return valid(lambda: type(model).model_validate_json(text), what)
