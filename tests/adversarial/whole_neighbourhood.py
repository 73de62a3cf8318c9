"""Every edit of the small schedules in `WHOLE`, in slices: what became of each, counted by base, field and code.

    python -m tests.validator.evidence --only neighbourhood splits --jobs 14 --seconds 1500 --records FOLDER

A base has PARTS slices, each a part of its edits in an order that its name draws. The bases take turns, so that a
run that is not done has looked at as much of each. Every edit that is SAFE, or that the checker alone accepts, is
run, and so is every other that the judge can run; THOROUGH of the edits of each field of each base are, if SAFE,
judged by everything. A *difference* is a hole, or a failure of the tool itself.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from random import Random
from typing import Any

from amk.adversary.neighbourhood.account import account
from amk.adversary.neighbourhood.bases import WHOLE, base
from amk.adversary.neighbourhood.ledger import Line, counts, key_of
from amk.adversary.neighbourhood.mutator import Change, Neighbourhood, schema_of_schedules
from amk.adversary.neighbourhood.survey import EVERYTHING, TOO_MUCH, Care, Outcome, Survey

PARTS = 64
SLICES = PARTS * len(WHOLE)
SPLIT_PARTS = 128
SPLIT_SLICES = SPLIT_PARTS * len(WHOLE)
THOROUGH = 12
SHOWN = 300
"""Characters of an edit that a record repeats."""


@lru_cache(maxsize=len(WHOLE))
def edits_of(name: str) -> tuple[list[Change], Counter[str], Survey]:
    """(all edits in the order of the slices, edits of each field)."""
    changes = list(Neighbourhood(base(name), schema_of_schedules()).changes())
    Random(name).shuffle(changes)
    return changes, Counter(change.field for change in changes), Survey(base(name))


@lru_cache(maxsize=len(WHOLE))
def splits_of(name: str) -> tuple[list[Change], Counter[str], Survey]:
    """The same of entries in two."""
    changes = list(Neighbourhood(base(name), schema_of_schedules()).splits())
    Random(f"{name} splits").shuffle(changes)
    return changes, Counter(change.field for change in changes), Survey(base(name))


def neighbourhood_slice(number: int) -> dict[str, Any]:
    """One part of the edits of one base."""
    name, part = WHOLE[number % len(WHOLE)], number // len(WHOLE)
    return _judged(name, *edits_of(name), part, PARTS)


def splits_slice(number: int) -> dict[str, Any]:
    """One part of the splits of one base."""
    name, part = WHOLE[number % len(WHOLE)], number // len(WHOLE)
    return _judged(name, *splits_of(name), part, SPLIT_PARTS)


def _judged(
    name: str, changes: list[Change], of_field: Counter[str], survey: Survey, part: int, parts: int
) -> dict[str, Any]:
    lines = []
    for change in changes[part::parts]:
        key = key_of(name, change)
        drawn = int(key[:8], 16) % max(1, of_field[change.field] // THOROUGH) == 0
        outcome = survey.outcome(change, Care(safe=EVERYTHING if drawn else 1, other=1))
        lines.append(Line(name, key, change.field, change.kind, outcome, edits=change.key))
    return counted(name, lines)


def counted(name: str, lines: list[Line]) -> dict[str, Any]:
    """Of one base."""
    outcomes = [line.outcome for line in lines]
    told = [line for line in lines if line.outcome.hole or _broken(line.outcome)]
    beside = [line for line in lines if line.outcome.verdict not in ("SAFE", "error") and _accepted(line.outcome)]
    thorough = [line for line in lines if line.outcome.verdict == "SAFE" and line.outcome.asked == EVERYTHING]
    seconds: Counter[str] = Counter()
    for outcome in outcomes:
        seconds.update(outcome.seconds)
    return {
        "edits": len(lines),
        "holes": sum(bool(outcome.hole) for outcome in outcomes),
        "bases": {name: {"edits": len(lines)} | Counter(outcome.verdict for outcome in outcomes)},
        "fields": counts(lines),
        "judged by everything": Counter(line.field for line in thorough),
        "account": {row.code: row.as_json() for row in account(lines)},
        "not SAFE, certificate accepted": Counter(
            f"{' '.join(line.outcome.codes)}: {line.field}, {line.kind}" for line in beside
        ),
        "without a verdict": Counter(f"{line.outcome.why}: {name}" for line in lines if line.outcome.why in TOO_MUCH),
        "times": {stage: round(time, 1) for stage, time in seconds.items()},
        "differences": [_said(line) for line in told],
    }


def _accepted(outcome: Outcome) -> bool:
    return outcome.certificate.startswith("accepted")


def _broken(outcome: Outcome) -> bool:
    return outcome.verdict == "error" and outcome.why not in TOO_MUCH


def _said(line: Line) -> str:
    outcome = line.outcome
    what = f"passes {outcome.hole}, {outcome.judge}" if outcome.hole else "error"
    return f"{line.base}: {line.field}, {line.kind}: {what}: {outcome.why[:SHOWN]}: {line.edits[:SHOWN]}"
