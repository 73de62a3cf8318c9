"""A schedule as a short text inside another file: its canonical text, compressed, in base64.

Whoever reads one trusts none of it. It is bounded before and after it is unpacked, has to have the hash that names it,
and is then parsed like any file of a schedule. Nothing of it is run.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from dataclasses import replace
from typing import Final

from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.schedule_ir.codec import canonical_json, parse_schedule
from amk.schedule_ir.schedule import Schedule

MOST_BYTES: Final = 256 << 10
"""Of the canonical text: six times that of the longest default plan of the models here."""
MOST_CHARACTERS: Final = 64 << 10
"""Of the packed text."""


def pack(schedule: Schedule) -> str:
    """The text. AMK002 if `unpack` would refuse it."""
    content = canonical_json(schedule)
    text = base64.b64encode(zlib.compress(content, 9)).decode("ascii")
    if len(content) > MOST_BYTES or len(text) > MOST_CHARACTERS:
        raise AmkError(Diagnostic("AMK002", f"{schedule.name}: {len(content):,} bytes, the limit is {MOST_BYTES:,}"))
    return text


def unpack(text: str, digest: str, file: str) -> Schedule:
    """The schedule of that hash. AMK002, AMK004, AMK005 and others of a schedule's file, at a place in `file`."""
    where = Where(file=file, path=f"/schedules/{digest}")
    content = _inflated(text, where)
    if hashlib.sha256(content).hexdigest() != digest:
        raise AmkError(Diagnostic("AMK005", "the schedule is another one than its hash says", where=where))
    try:
        return parse_schedule(content, f"{file}, schedule {digest[:12]}")[0]
    except AmkError as error:
        again = "measure again with this version: `amk bench --share`"
        raise AmkError([replace(d, help=again) if d.code == "AMK004" else d for d in error.diagnostics]) from error


def _inflated(text: str, where: Where) -> bytes:
    """AMK002 as soon as there are more than MOST_BYTES, however many would follow; AMK005 if it is not compressed."""
    if len(text) > MOST_CHARACTERS:
        message = f"a schedule of {len(text):,} characters, the limit is {MOST_CHARACTERS:,}"
        raise AmkError(Diagnostic("AMK002", message, where=where))
    inflate = zlib.decompressobj()
    try:
        content = inflate.decompress(base64.b64decode(text, validate=True), MOST_BYTES + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise AmkError(Diagnostic("AMK005", f"not a compressed schedule: {error}", where=where)) from error
    if len(content) > MOST_BYTES:
        message = f"the schedule has more than {MOST_BYTES:,} bytes"
        raise AmkError(Diagnostic("AMK002", message, where=where))
    if not inflate.eof or inflate.unused_data:
        raise AmkError(Diagnostic("AMK005", "not a compressed schedule: it is cut or goes on behind", where=where))
    return content
