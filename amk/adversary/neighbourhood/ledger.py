"""What was found for each edit, a line of JSON each, only ever added to: a run that is killed goes on where it stopped.

A line that was cut off by a kill is left out, and its edit is done again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from amk.adversary.edits import Json
from amk.adversary.neighbourhood.mutator import Change
from amk.adversary.neighbourhood.survey import Outcome
from amk.report.diagnostic import AmkError, Diagnostic, Where

HEAD = b'{"base":'
"""How every line begins."""
MOST_CHARACTERS = 600
"""Characters of an edit that a line repeats; a longer one is found again by its key."""


def key_of(base: str, change: Change) -> str:
    return sha256(f"{base}\n{change.key}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Line:
    """One edit: of which base, of which field, how, and what became of it. commit: of the program that said so."""

    base: str
    key: str
    field: str
    kind: str
    outcome: Outcome
    commit: str = ""
    edits: str = ""

    def text(self) -> str:
        head = {"base": self.base, "key": self.key, "field": self.field, "kind": self.kind, "commit": self.commit}
        shown = {"edits": self.edits} if self.edits and self.outcome.verdict not in ("refused", "same") else {}
        return json.dumps(head | shown | self.outcome.as_json(), separators=(",", ":")) + "\n"


class Ledger:
    """The lines of a file, and the way to add one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: set[str] = set()
        self.lines: list[Line] = []
        if path.exists():
            _check_kind(path)
            for line in read(path):
                self._take(line)
            _end_the_line(path)
        self._file = path.open("a", encoding="ascii")

    def add(self, line: Line) -> None:
        self._file.write(line.text())
        self._file.flush()
        self._take(line)

    def _take(self, line: Line) -> None:
        self.keys.add(line.key)
        self.lines.append(line)

    def close(self) -> None:
        self._file.close()


def _check_kind(path: Path) -> None:
    """AMK005 for a file of another kind, to which nothing should be added."""
    with path.open("rb") as file:
        head = file.read(len(HEAD))
    if head != HEAD[: len(head)]:
        message = "the file has other lines than those of `amk adversarial --neighbourhood`"
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path)), help="name a file that is not there"))


def _end_the_line(path: Path) -> None:
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")


def read(path: Path) -> Iterator[Line]:
    """Every whole line; of several about one edit the last."""
    found: dict[str, Json] = {}
    for text in path.read_text(encoding="ascii", errors="replace").splitlines():
        try:
            entry = json.loads(text)
            found[entry["key"]] = entry
        except (ValueError, KeyError, TypeError):
            continue
    for entry in found.values():
        yield _line(entry)


def _line(entry: Json) -> Line:
    own = {k: entry[k] for k in ("verdict", "certificate", "judge", "why", "asked", "seconds") if k in entry}
    outcome = Outcome(codes=tuple(entry.get("codes", ())), **own)
    return Line(
        entry["base"], entry["key"], entry["field"], entry["kind"], outcome, entry.get("commit", ""),
        entry.get("edits", ""),
    )  # fmt: skip


def counts(lines: list[Line]) -> dict[str, dict[str, int]]:
    """By field: edits, each verdict, certificates refused, rulings, holes."""
    found: dict[str, Counter[str]] = {}
    for line in lines:
        row, outcome = found.setdefault(line.field, Counter()), line.outcome
        row["edits"] += 1
        row[outcome.verdict] += 1
        if outcome.verdict == "SAFE" and outcome.certificate != "accepted":
            row["SAFE, not certified"] += 1
        if outcome.verdict != "SAFE" and outcome.certificate.startswith("accepted"):
            row["not SAFE, certificate accepted"] += 1
        if outcome.judge:
            row[f"{outcome.verdict}, {'refuted' if outcome.refuted else outcome.judge}"] += 1
        if outcome.hole:
            row["holes"] += 1
    return {field: dict(row) for field, row in sorted(found.items())}
