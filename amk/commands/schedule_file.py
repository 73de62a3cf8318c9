"""Reading a schedule or a certificate on a command line; a file of another kind is refused by what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where
from amk.report.json_file import Positions, read_json
from amk.schedule_ir.codec import MAX_BYTES, load_schedule, located
from amk.schedule_ir.schedule import Schedule

KINDS = {
    "amk.certificate": "a certificate of a schedule",
    "amk.flat-certificate": "a certificate of a flat system",
    "amk.loop-certificate": "a certificate of a system with loops",
    "amk.evidence": "a witness",
    "amk.witness": "a witness",
    "amk.flat": "a flat system",
    "amk.loops": "a system with loops",
    "amk.case": "a case of the adversarial suite",
}
"""By the name in a file's `format`."""
HELP = {
    "amk.certificate": "`amk check-certificate SCHEDULE CERTIFICATE` takes the schedule first",
    "amk.evidence": "`amk replay WITNESS` runs it",
}


def read_schedule(path: Path) -> tuple[Schedule, Positions]:
    """As `load_schedule`. AMK005 for a file that says that it is of another kind."""
    try:
        return load_schedule(path)
    except AmkError as error:
        name = "" if error.diagnostics[0].code != "AMK004" else _format(read_json(path, MAX_BYTES))
        if name not in KINDS:
            raise
        message = f"the file is {KINDS[name]}, not a schedule"
        help_ = HELP.get(name)
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path)), help=help_), Exit.INPUT) from error


def read_certificate(path: Path, limit: int, of: str) -> Any:
    """The JSON in a file that is to be a certificate whose format has this name. AMK005 for a schedule, and for a file
    that says that it is of another kind; whatever else it is, the checker refuses it."""
    value = read_json(path, limit)
    name = _format(value)
    kind = KINDS.get(name)
    if kind is None and isinstance(value, dict) and {"version", "programs"} <= value.keys():
        kind = "a schedule"
    if kind is None or name == of:
        return value
    message = f"the file is {kind}, not {KINDS[of]}"
    help_ = "`amk verify FILE --certificate CERTIFICATE` writes the certificate of what is SAFE"
    raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path)), help=help_), Exit.INPUT)


def _format(value: object) -> str:
    found = value.get("format") if isinstance(value, dict) else None
    return found.partition("/")[0] if isinstance(found, str) else ""


@contextmanager
def places_in(path: str | None) -> Iterator[None]:
    """Findings about the schedule of this file get file, line and column; None for one that no file holds."""
    try:
        yield
    except AmkError as error:
        if path is None:
            raise
        positions = load_schedule(Path(path))[1]
        raise AmkError([_placed(d, path, positions) for d in error.diagnostics], error.exit_code) from error


def _placed(diagnostic: Diagnostic, path: str, positions: Positions) -> Diagnostic:
    where = diagnostic.where
    return located(diagnostic, path, positions) if where is not None and where.path and not where.file else diagnostic
