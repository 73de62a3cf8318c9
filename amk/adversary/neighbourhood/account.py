"""A strictness account: edits that are UNSAFE or UNKNOWN and that no run refutes, by code.

Not refuting proves nothing, so every code gets the class of its reason, from what the judge can see:

* `unseen`: real, and outside the machine's sight: a race that no order showed, the memory model, the kernel's
  resources, alignment, a width that this machine does not have, an operation that it does not carry out;
* `policy`: what amk asks of every schedule so that it can be decided or launched, whatever runs would show;
* `open`: a rule that a run should be able to break. Those are candidates for a needless refusal, listed with examples.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from amk.adversary.neighbourhood.bases import base
from amk.adversary.neighbourhood.ledger import Line

RACE = "a race shows in some orders only"
MODEL = "runs here are sequentially consistent"
OUTSIDE = "the machine carries it out as if it were an ordinary wait or signal"
LIMITS = "no hardware limit binds the machine"
UNSEEN: dict[str, str] = {
    "AMK203": f"{RACE}, and of a hint none, which orders nothing", "AMK204": "no run has 2^32 increments",
    "AMK301": f"{RACE}, and none where bytes are declared and not touched", "AMK302": RACE, "AMK401": LIMITS,
    "AMK402": LIMITS, "AMK403": LIMITS, "AMK405": "copies and operands are numbers, not bytes, here", "AMK406": LIMITS,
    "AMK514": RACE, "AMK515": RACE, "AMK601": LIMITS,
} | dict.fromkeys((f"AMK{n}" for n in range(501, 513)), MODEL) | dict.fromkeys(
    ("AMK205", *(f"AMK{n}" for n in range(208, 215))), OUTSIDE
)  # fmt: skip
UNSEEN |= {
    "AMK011": LIMITS,
    "AMK105": "bytes that nobody wrote may be read and not count",
    "AMK404": RACE,
    "AMK407": "what device code relies on; no device code runs here",
    "AMK513": "a word with an equal tag is taken too early in some orders, or after more tokens than a run has",
}
POLICY: dict[str, str] = {
    "AMK101": "every row is to be somebody's, also one whose value a run does not show",
    "AMK102": "a row is to be one worker's, even where both write the same",
    "AMK103": "shapes and limits are to be the plan's, even where others hold as much or more than a run touches",
    "AMK104": "an operand is to be the one that is meant, even where the arithmetic has no use for it",
    "AMK106": "the steps are to be those of the model, each once, even where another list computes the same",
}
BEYOND: dict[str, str] = {
    "AMK101": "rows of lm_head have no worker, in a schedule without output head: no step reads them",
    "AMK102": "rows of lm_head have two workers, likewise",
    "AMK103": "a buffer has another shape of as many bytes, or longer rows: all find the same in it",
    "AMK106": "a step is there twice and writes the same again, more columns are staged than are read, or the launch "
    "state serves as scratch until it is written",
    "AMK405": "what nothing uses: scales or sums of blocks beside operands that need none, a change of chunks that is "
    "there twice, chunks of lm_head in later layers",
}
"""Codes of schedules that the checker accepts: what they ask changes nothing of what is computed."""
OF_ROWS = frozenset({"AMK101", "AMK102"})
EXAMPLES = 5


@dataclass
class Row:
    """One code: edits judged and refuted, those that the judge cannot run, fields of those that stand, and some of
    them, each of another field."""

    code: str
    kind: str
    judged: int = 0
    refuted: int = 0
    unrun: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def standing(self) -> int:
        """Judged and not refuted."""
        return self.judged - self.refuted

    def as_json(self) -> dict[str, Any]:
        """Numbers that may be added up; of several examples the first."""
        numbers = {"judged": self.judged, "refuted": self.refuted, "unrun": self.unrun}
        return numbers | {"fields": dict(self.fields), "example": (self.examples or [""])[0]}


def beyond(line: Line) -> bool:
    """Whether all that the edit is refused for is of the kinds in BEYOND, rows only where there is no output head."""
    codes = set(line.outcome.codes)
    if codes & OF_ROWS and not ('"tables","lm_head.' in line.edits and base(line.base).get("headless")):
        return False
    return BEYOND.keys() >= codes


def reason_of(code: str) -> str:
    """Why no run refutes edits that this code refuses; empty where nobody has said."""
    return UNSEEN.get(code) or POLICY.get(code, "")


def kind_of(code: str) -> str:
    return "unseen" if code in UNSEEN else "policy" if code in POLICY else "open"


def account(lines: list[Line]) -> list[Row]:
    """By first code, those with most edits that stand first."""
    rows: dict[str, Row] = {}
    for line in lines:
        outcome = line.outcome
        if outcome.verdict not in ("UNSAFE", "UNKNOWN") or not outcome.judge:
            continue
        code = outcome.codes[0] if outcome.codes else outcome.verdict
        row = rows.setdefault(code, Row(code, kind_of(code)))
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
