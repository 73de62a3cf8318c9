"""Recorded rows: a small JSON file that grows row by row, so that a run can stop anywhere and be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amk.bench.row import Key, Row
from amk.bench.times import Times
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.schedule_ir.json_file import read_json

FORMAT = 1
LIMIT = 4 << 20


@dataclass
class Record:
    """Rows of one file with the run each came from. Entries of other runs are kept as they are."""

    path: Path
    entries: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path) -> Record:
        """An absent file is an empty record; AMK005 for a file that is not a record of this format."""
        if not path.exists():
            return cls(path)
        content = read_json(path, LIMIT)
        if not isinstance(content, dict) or content.get("format") != FORMAT or not _all_rows(content.get("rows")):
            message = f"not a record of measurements in format {FORMAT}"
            raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path))))
        return cls(path, list(content["rows"]))

    def find(self, key: Key) -> Row | None:
        """The recorded row of `key`, if there is one."""
        return next((row_of(entry["row"]) for entry in self.entries if key_of(entry["row"]) == key), None)

    def rows(self) -> list[Row]:
        return [row_of(entry["row"]) for entry in self.entries]

    def add(self, row: Row, run: dict[str, object]) -> None:
        """Write the file with `row`, which replaces an earlier one of the same key; atomic."""
        self.entries = [entry for entry in self.entries if key_of(entry["row"]) != row.key]
        self.entries.append({"row": row.record(), "run": run})
        self.write()

    def write(self) -> None:
        """Replace the file as a whole."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps({"format": FORMAT, "rows": self.entries}, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)


def merged(paths: Sequence[Path], into: Path | None = None) -> list[Row]:
    """The rows of several records, such as those of processes that shared a table; all written to `into`, if given.

    Of rows with one key the last counts. AMK001 for a record that is not there.
    """
    entries: list[dict[str, Any]] = []
    for path in paths:
        if not path.is_file():
            raise AmkError(Diagnostic("AMK001", "there is no such record", where=Where(file=str(path))))
        new = Record.open(path).entries
        known = {key_of(entry["row"]) for entry in new}
        entries = [entry for entry in entries if key_of(entry["row"]) not in known] + new
    if into is not None:
        Record(into, entries).write()
    return [row_of(entry["row"]) for entry in entries]


def _all_rows(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("row"), dict) and isinstance(entry["row"].get("key"), dict)
        for entry in rows
    )


def key_of(values: dict[str, Any]) -> Key:
    """What a recorded row is about; AMK005 if a field is missing or of the wrong shape."""
    try:
        return Key(**(values["key"] | {"baselines": tuple(values["key"]["baselines"])}))
    except (KeyError, TypeError, AttributeError) as error:
        raise AmkError(Diagnostic("AMK005", f"a recorded row is incomplete: {error}")) from error


def row_of(values: dict[str, Any]) -> Row:
    """The row that `Row.record` described; AMK005 if a field is missing or of the wrong shape."""
    key = key_of(values)
    try:
        names = ("bytes", "ceiling_gbps", "error", "torch_error", "kl", "argmax_agrees", "reproducible", "correct")
        return Row(
            key=key,
            times=Times(**values["times"]),
            baselines={name: Times(**times) for name, times in values["baselines"].items()},
            left_out={str(name): str(why) for name, why in values.get("left_out", {}).items()},
            **{name: values[name] for name in names},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise AmkError(Diagnostic("AMK005", f"a recorded row is incomplete: {error}")) from error
