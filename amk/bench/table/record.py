"""Recorded rows: a small JSON file that grows row by row, so that a run can stop anywhere and be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amk.bench.table.ablation import Ablation
from amk.bench.table.row import Key, Row
from amk.bench.tools.times import Power, Times
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json

FORMAT = 1
ABLATIONS = "ablations 1"
LIMIT = 4 << 20


@dataclass
class Record:
    """Rows of one file with the run each came from. Entries of other runs are kept as they are.

    form: what the rows are, `FORMAT` for `Row` and `ABLATIONS` for `Ablation`.
    """

    path: Path
    entries: list[dict[str, Any]] = field(default_factory=list)
    form: int | str = FORMAT

    @classmethod
    def open(cls, path: Path, form: int | str = FORMAT) -> Record:
        """An absent file is an empty record; AMK005 for a file that is not a record of this form."""
        if not path.exists():
            return cls(path, form=form)
        content = read_json(path, LIMIT)
        if not isinstance(content, dict) or content.get("format") != form or not _all_rows(content.get("rows")):
            message = f"not a record of measurements in format {form}"
            raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path))))
        return cls(path, list(content["rows"]), form)

    def find(self, key: Key) -> Row | None:
        """The recorded row of `key`, if there is one."""
        return next((row_of(entry["row"]) for entry in self.entries if key_of(entry["row"]) == key), None)

    def rows(self) -> list[Row]:
        return [row_of(entry["row"]) for entry in self.entries]

    def ablations(self) -> list[Ablation]:
        return [ablation_of(entry["row"]) for entry in self.entries]

    def add(self, row: Row | Ablation, run: dict[str, object]) -> None:
        """Write the file with `row`, which replaces an earlier one of the same key; atomic."""
        self.entries = [entry for entry in self.entries if key_of(entry["row"]) != row.key]
        self.entries.append({"row": row.record(), "run": run})
        self.write()

    def write(self) -> None:
        """Replace the file as a whole."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        text = json.dumps({"format": self.form, "rows": self.entries}, indent=1, allow_nan=False) + "\n"
        temporary.write_text(text, encoding="utf-8")
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
        return Row(
            key=key,
            times=times_of(values["times"]),
            baselines={name: times_of(times) for name, times in values["baselines"].items()},
            left_out={str(name): str(why) for name, why in values.get("left_out", {}).items()},
            variants={
                str(name): {str(way): float(ms) for way, ms in each.items()}
                for name, each in values.get("variants", {}).items()
            },
            uuid=str(values.get("uuid", "")),
            errors={str(name): float(error) for name, error in values.get("errors", {}).items()},
            power={str(name): power_of(each) for name, each in values.get("power", {}).items()},
            **{name: values[name] for name in ("bytes", "argmax_agrees", "reproducible", "correct")},
            **_numbers(values, "ceiling_gbps", "error", "torch_error", "kl"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AmkError(Diagnostic("AMK005", f"a recorded row is incomplete: {error}")) from error


def ablation_of(values: dict[str, Any]) -> Ablation:
    """The ablation that `Ablation.record` described; AMK005 if a field is missing or of the wrong shape."""
    key = key_of(values)
    try:
        return Ablation(
            key=key,
            times={str(name): times_of(times) for name, times in values["times"].items()},
            left_out={str(name): str(why) for name, why in values["left_out"].items()},
            **{name: values[name] for name in ("layers", "bytes", "l2_bytes", "correct")},
            **_numbers(values, "ceiling_gbps", "error", "torch_error"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AmkError(Diagnostic("AMK005", f"a recorded ablation is incomplete: {error}")) from error


def times_of(values: dict[str, Any]) -> Times:
    """What `asdict` made of it."""
    return Times(**(values | _numbers(values, "ms", "p10", "p90")))


def power_of(values: dict[str, Any]) -> Power:
    """What `asdict` made of it."""
    numbers = _numbers(values, "joules", "watts", "sm_mhz", "least_sm_mhz", "memory_mhz")
    return Power(**(values | numbers | {"throttled": tuple(str(why) for why in values["throttled"])}))


def _numbers(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """Numbers, which may stand there as the names of those that JSON lacks (`finite`)."""
    return {name: float(values[name]) for name in names}
