"""Schedules as files: canonical JSON, a stable hash, and reading what nobody vouches for.

Reading: size and depth are bounded before anything is built, repeated keys and non-finite numbers are refused, the
version is looked at first, and every complaint carries the line of the value it is about.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.schema import schema_error
from amk.schedule_ir.json_file import parse_json, read_bytes
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import VERSION, Schedule

MAX_BYTES = 64 * 2**20

_TOKEN = re.compile(rb'\s*("(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]+)', re.DOTALL)


class Positions(Mapping[str, int]):
    """JSON pointer -> line (from 1) of the value; scanned when first asked: most files are never complained of."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._lines: dict[str, int] | None = None

    def _scanned(self) -> dict[str, int]:
        if self._lines is None:
            self._lines = _scan(self._content)
        return self._lines

    def __getitem__(self, pointer: str) -> int:
        return self._scanned()[pointer]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._scanned())

    def __len__(self) -> int:
        return len(self._scanned())

    def nearest(self, pointer: str) -> int | None:
        """The line of the value, or of the closest enclosing one."""
        while pointer and pointer not in self._scanned():
            pointer = pointer.rpartition("/")[0]
        return self._scanned().get(pointer)


def _scan(content: bytes) -> dict[str, int]:
    """Lines of all values of a text that is known to be JSON."""
    lines = {}
    stack: list[list[str | int | None]] = []  # per open bracket: the current key, or the index
    line, at, expects_key = 1, 0, False
    for match in _TOKEN.finditer(content):
        token = match.group(1)
        line += content.count(b"\n", at, match.start(1))
        at = match.start(1)
        if token in (b"}", b"]"):
            stack.pop()
            expects_key = False
        elif token == b",":
            top = stack[-1]
            expects_key = isinstance(top[0], str)
            top[0] = top[0] if isinstance(top[0], str) else (top[0] or 0) + 1
        elif token == b":":
            expects_key = False
        elif expects_key:
            stack[-1][0] = str(json.loads(token))
        else:
            parts = (str(frame[0]).replace("~", "~0").replace("/", "~1") for frame in stack)
            lines["".join(f"/{part}" for part in parts)] = line
            if token in (b"{", b"["):
                stack.append(["" if token == b"{" else 0])
                expects_key = token == b"{"
    return lines


def load_schedule(path: Path) -> tuple[Schedule, Positions]:
    """The schedule in the file; AMK0xx as an AmkError (exit 2) for anything that is not one."""
    return parse_schedule(read_bytes(path, MAX_BYTES), str(path))


def parse_schedule(content: bytes, file: str) -> tuple[Schedule, Positions]:
    """The schedule in `content`; `file` names the place in diagnostics."""
    value = parse_json(content, file)
    positions = Positions(content)
    _check_version(value, file, positions)
    try:
        schedule = Schedule.model_validate_json(content.removeprefix(b"\xef\xbb\xbf"))
    except ValidationError as error:
        found = schema_error(error, file).diagnostics
        raise AmkError([located(_without_tags(d, value), file, positions) for d in found]) from error
    if wrong := check_references(schedule):
        raise AmkError([located(d, file, positions) for d in wrong])
    return schedule, positions


def _check_version(value: object, file: str, positions: Positions) -> None:
    if not isinstance(value, dict):
        raise AmkError(Diagnostic("AMK005", "a schedule is a JSON object", where=Where(file=file, line=1)))
    version = value.get("version")
    if type(version) is int and version == VERSION:
        return
    shown = "no version" if "version" not in value else "an unknown version"
    message = f"the file has {shown}; this program reads version {VERSION}"
    raise AmkError(
        Diagnostic(
            "AMK004", message, where=Where(file=file, line=positions.nearest("/version"), path="/version"),
            help="make the schedule again with `amk plan`",
        )
    )  # fmt: skip


def _without_tags(diagnostic: Diagnostic, value: object) -> Diagnostic:
    """The JSON pointer of a schema complaint without the names of union members, which are not in the file."""
    parts = ((diagnostic.where or Where()).path or "").split("/")[1:]
    kept = []
    for i, part in enumerate(parts):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        elif i < len(parts) - 1:
            continue
        kept.append(part)
    return replace(diagnostic, where=Where(path="".join(f"/{part}" for part in kept)))


def located(diagnostic: Diagnostic, file: str | None, positions: Positions | None) -> Diagnostic:
    """The diagnostic with file and line filled in from its JSON pointer."""
    where = diagnostic.where or Where()
    line = positions.nearest(where.path or "") if positions is not None else where.line
    return replace(diagnostic, where=replace(where, file=file or where.file, line=line))


def canonical_json(schedule: Schedule) -> bytes:
    """The one text of a schedule: sorted keys, no spaces, no defaults left out, ASCII, one newline at the end."""
    text = json.dumps(schedule.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii") + b"\n"


def schedule_hash(schedule: Schedule) -> str:
    """sha256 of the canonical text, in hex."""
    return hashlib.sha256(canonical_json(schedule)).hexdigest()


def save_schedule(schedule: Schedule, path: Path) -> None:
    """Write the canonical text."""
    path.write_bytes(canonical_json(schedule))
