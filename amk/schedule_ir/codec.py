"""Schedules as files: canonical JSON, a stable hash, and reading what nobody vouches for.

Reading: size and depth are bounded before anything is built, repeated keys and non-finite numbers are refused, the
version is looked at first, and every complaint carries the line of the value it is about.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from amk.report.diagnostic import AmkError, Diagnostic, Source, Where
from amk.report.json_file import Positions as Positions
from amk.report.json_file import parse_json, read_bytes
from amk.report.schema import is_name, schema_error
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import VERSION, Schedule

MAX_BYTES = 64 * 2**20
CASE: Final = "amk.case/1"
"""Format of a case of the adversarial suite, which holds a schedule beside what is to be said of it."""


def load_schedule(path: Path) -> tuple[Schedule, Positions]:
    """The schedule in the file, or in the case that it holds; AMK0xx as an AmkError (exit 2) for anything else."""
    return parse_schedule(read_bytes(path, MAX_BYTES), str(path))


def parse_schedule(content: bytes, file: str) -> tuple[Schedule, Positions]:
    """The schedule in `content`; `file` names the place in diagnostics."""
    value = parse_json(content, file)
    positions = Positions(content)
    if isinstance(value, dict) and value.get("format") == CASE:
        value, positions = _of_case(value, file), Positions(content, within="/schedule")
        content = json.dumps(value).encode()
    _check_version(value, file, positions)
    try:
        schedule = Schedule.model_validate_json(content.removeprefix(b"\xef\xbb\xbf"))
    except ValidationError as error:
        found = schema_error(error, file).diagnostics
        raise AmkError([located(_without_tags(d, value), file, positions) for d in found]) from error
    if wrong := check_references(schedule):
        raise AmkError([located(d, file, positions) for d in wrong])
    return schedule, positions


def _of_case(case: dict[str, Any], file: str) -> object:
    if "schedule" in case:
        return case["schedule"]
    message = "the case is about a flat system, not a schedule"
    raise AmkError(Diagnostic("AMK005", message, where=Where(file=file), help="`amk adversarial` judges every case"))


def _check_version(value: object, file: str, positions: Positions) -> None:
    if not isinstance(value, dict):
        raise AmkError(Diagnostic("AMK005", "a schedule is a JSON object", where=Where(file=file, line=1)))
    version = value.get("version")
    if type(version) is int and version == VERSION:
        return
    if "version" not in value:
        shown = "no version"
    elif type(version) is int and 0 < version < VERSION:
        shown = f"version {version}, of an older amk"
    else:
        shown = "an unknown version"
    message = f"the file has {shown}; this program reads version {VERSION}"
    help_ = f"make the schedule again: `amk plan{_named(value, 'model', 'model')}{_named(value, 'target', 'gpu')}`"
    raise AmkError(located(Diagnostic("AMK004", message, where=Where(path="/version"), help=help_), file, positions))


def _named(value: dict[str, Any], part: str, option: str) -> str:
    """The option of `amk plan` that the file's own name for its model or target gives, if it is a plain name."""
    found = value.get(part)
    name = found.get("name") if isinstance(found, dict) else None
    return f" --{option} {name}" if isinstance(name, str) and is_name(name) else ""


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
    """The diagnostic with file, line, column and the text there filled in from its JSON pointer.

    Without a pointer it is about the whole file: line 1, and no text is quoted.
    """
    where = diagnostic.where or Where()
    where = replace(where, file=file or where.file)
    if positions is None or (region := positions.region(where.path or "")) is None:
        return replace(diagnostic, where=where)
    where = replace(where, line=region.line, column=region.column)
    if not where.path:
        return replace(diagnostic, where=where)
    return replace(diagnostic, where=where, source=Source(region.text, region.end_line, region.end_column))


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
