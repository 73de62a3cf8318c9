"""Lists of edits as files: canonical JSON, read as strictly as a schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import parse_json, read_bytes
from amk.report.schema import schema_error
from amk.schedule_ir.edits.kinds import Edit, EditList

MAX_BYTES: Final = 16 * 2**20


def load_edits(path: Path) -> EditList:
    """The list in the file; AMK0xx as an AmkError (exit 2) for anything else."""
    return parse_edits(read_bytes(path, MAX_BYTES), str(path))


def parse_edits(content: bytes, file: str) -> EditList:
    """The list in `content`; `file` names the place in diagnostics."""
    if not isinstance(parse_json(content, file), dict):
        message = "a file of edits is a JSON object with the list `edits`"
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=file, line=1)))
    try:
        return EditList.model_validate_json(content.removeprefix(b"\xef\xbb\xbf"))
    except ValidationError as error:
        raise schema_error(error, file) from error


def edits_json(edits: EditList) -> bytes:
    """The text of the list: an edit a line, fields that have their default left out."""
    lines = [json.dumps(shown(edit), sort_keys=True) for edit in edits.edits]
    inner = ",\n".join(f"  {line}" for line in lines)
    body = f"[\n{inner}\n ]" if lines else "[]"
    return f'{{\n "edits": {body},\n "format": "{edits.format}",\n "repair": {json.dumps(edits.repair)}\n}}\n'.encode(
        "ascii"
    )


def shown(edit: Edit) -> dict[str, Any]:
    fields = type(edit).model_fields
    full = edit.model_dump(mode="json")
    return {
        n: v
        for n, v in full.items()
        if n == "do" or getattr(edit, n) != fields[n].get_default(call_default_factory=True)
    }
