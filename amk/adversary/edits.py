"""Edits of a schedule's JSON that can be undone: how a case is made from a safe plan, and repaired into its twin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

Json = Any
Path = tuple[str | int, ...]


class Edit(NamedTuple):
    """replace the value at `path`, insert `value` before it (a new key of an object), or remove it."""

    do: Literal["replace", "insert", "remove"]
    path: Path
    value: Json = None


def at(document: Json, path: Path) -> Json:
    """The value at a path; KeyError or IndexError if there is none."""
    for part in path:
        document = document[part]
    return document


def apply(document: Json, edits: list[Edit]) -> tuple[Json, list[Edit]]:
    """(edited copy, edits that undo it). Parts that no edit reaches are shared with the original."""
    undo: list[Edit] = []
    for edit in edits:
        document, inverse = _applied(document, edit, edit.path)
        undo.append(inverse)
    return document, undo[::-1]


def _applied(part: Json, edit: Edit, path: Path) -> tuple[Json, Edit]:
    """A copy of the part in which the edit is made at `path` inside it."""
    copied = part.copy()
    if len(path) > 1:
        copied[path[0]], inverse = _applied(part[path[0]], edit, path[1:])
        return copied, inverse
    key: Any = path[0]
    if edit.do == "insert":
        if isinstance(copied, dict):
            copied[key] = edit.value
        else:
            copied.insert(key, edit.value)
        return copied, Edit("remove", edit.path)
    if edit.do == "remove":
        return copied, Edit("insert", edit.path, copied.pop(key))
    copied[key] = edit.value
    return copied, Edit("replace", edit.path, part[key])


def steps(document: Json) -> Iterator[tuple[Path, Json]]:
    """Every step of every program with its path, in textual order."""

    def walk(body: Json, path: Path) -> Iterator[tuple[Path, Json]]:
        for i, node in enumerate(body):
            if "op" in node:
                yield (*path, i), node
            else:
                yield from walk(node["body"], (*path, i, "body"))

    for number, program in enumerate(document["programs"]):
        yield from walk(program["body"], ("programs", number, "body"))


def find(document: Json, op: str, nth: int = 0, **fields: Json) -> Path:
    """The path of the nth step with this op whose op fields have these values; LookupError if there is none."""
    found = [
        path
        for path, step in steps(document)
        if step["op"]["op"] == op and all(step["op"].get(k) == v for k, v in fields.items())
    ]
    if nth >= len(found):
        raise LookupError(f"no step {op} {fields} number {nth}")
    return found[nth]


def waiting(document: Json, counter: str, nth: int = 0) -> Path:
    """The path of the nth step that waits for the counter."""
    return [p for p, s in steps(document) if any(w["counter"] == counter for w in s.get("waits", ()))][nth]


def signalling(document: Json, counter: str, nth: int = 0) -> Path:
    """The path of the nth step that signals the counter."""
    return [p for p, s in steps(document) if any(w["counter"] == counter for w in s.get("signals", ()))][nth]


def after(path: Path, by: int = 1) -> Path:
    """The path of the step `by` places later in the same body."""
    return (*path[:-1], int(path[-1]) + by)


def meeting(counter: str, index: Json, least: Json) -> list[Json]:
    """Two steps in which all warps of a worker signal a counter, and wait for it."""
    entry = {"counter": counter, "index": index}
    added, awaited = entry | {"add": 1, "order": "release"}, entry | {"at_least": least, "order": "acquire"}
    return [
        {"op": {"op": "signal", "role": "all"}, "waits": [], "signals": [added]},
        {"op": {"op": "wait", "role": "all"}, "waits": [awaited], "signals": []},
    ]


def named(document: Json, kind: str, name: str) -> Path:
    """The path of a buffer, counter, stream or role."""
    return next((kind, i) for i, entry in enumerate(document[kind]) if entry["name"] == name)
