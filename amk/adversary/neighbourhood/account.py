"""A strictness account: edits that are UNSAFE or UNKNOWN and that no run refutes, by code.

Not refuting proves nothing, so every code and edited field gets its reason (`reasons`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from amk.adversary.neighbourhood.bases import base
from amk.adversary.neighbourhood.ledger import Line
from amk.adversary.neighbourhood.reasons import reason_of

BEYOND: dict[str, str] = {
    "AMK101": "rows of lm_head have no worker, in a schedule without output head: no step reads them",
    "AMK102": "rows of lm_head have two workers, likewise",
    "AMK103": "a buffer has another shape of as many bytes, or longer rows: all find the same in it",
    "AMK104": "`finish` is there twice: what the last one stores is what the launch leaves",
    "AMK106": "a step is there twice and writes the same again, more columns are staged than are read, or the launch "
    "state serves as scratch until it is written",
    "AMK405": "what nothing uses: scales or sums of blocks beside operands that need none, a change of chunks that is "
    "there twice, chunks of lm_head in later layers",
}
"""Codes of schedules that the checker accepts: what they ask changes nothing of what is computed."""
OF_ROWS = frozenset({"AMK101", "AMK102"})
FINISH = '"op":"finish"'
"""In an edit that AMK104 counts for: any other read of the wrong value is a difference."""
EXAMPLES = 5


@dataclass
class Row:
    """One code: edits judged and refuted, those that the judge cannot run, fields of those that stand, and some of
    them, each of another field."""

    code: str
    judged: int = 0
    refuted: int = 0
    unrun: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def standing(self) -> int:
        """Judged and not refuted."""
        return self.judged - self.refuted

    @property
    def kind(self) -> str:
        """Those of the edits that stand, most first."""
        kinds: Counter[str] = Counter()
        for name, count in self.fields.items():
            kinds[reason_of(self.code, name).kind] += count
        return ", ".join(kind for kind, _ in kinds.most_common())

    def as_json(self) -> dict[str, Any]:
        """Numbers that may be added up; of several examples the first."""
        numbers = {"judged": self.judged, "refuted": self.refuted, "unrun": self.unrun}
        return numbers | {"fields": dict(self.fields), "example": (self.examples or [""])[0]}


def beyond(line: Line) -> bool:
    """Whether all that the edit is refused for is of the kinds in BEYOND, rows only where there is no output head."""
    codes = set(line.outcome.codes)
    if "AMK104" in codes and FINISH not in line.edits:
        return False
    if codes & OF_ROWS and not ('"tables","lm_head.' in line.edits and base(line.base).get("headless")):
        return False
    return BEYOND.keys() >= codes


def account(lines: list[Line]) -> list[Row]:
    """By first code, those with most edits that stand first."""
    rows: dict[str, Row] = {}
    for line in lines:
        outcome = line.outcome
        if outcome.verdict not in ("UNSAFE", "UNKNOWN") or not outcome.judge:
            continue
        code = outcome.codes[0] if outcome.codes else outcome.verdict
        row = rows.setdefault(code, Row(code))
        if outcome.judge == "unrun":
            row.unrun += 1
            continue
        row.judged += 1
        if outcome.refuted:
            row.refuted += 1
            continue
        row.fields[line.field] += 1
        if row.fields[line.field] == 1 and line.edits and len(row.examples) < EXAMPLES:
            row.examples.append(f"{line.base}: {line.field}, {line.kind}: {line.edits[:200]}")
    return sorted(rows.values(), key=lambda row: (-row.standing, row.code))
