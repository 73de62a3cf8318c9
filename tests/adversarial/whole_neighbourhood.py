"""Every edit of the small schedules in `WHOLE`, in slices: what became of each, counted by base, field and code.

    python -m tests.validator.evidence --only neighbourhood values pairs --jobs 14 --seconds 1500 --records FOLDER

A base has PARTS slices, each a part of its edits in an order that its name draws. The bases take turns, so that a
run that is not done has looked at as much of each. Every edit that is SAFE, or that the checker alone accepts, runs on
the numpy machine and as a kernel in the emulator (`emulated`), and every other on the numpy machine if that can run it.
THOROUGH of the edits of each field of each base are, if SAFE, judged by everything, and so is the first SAFE one of
each field that a run meets. Splits run on the numpy machine alone, and so do the edits of bases in which two layers, or
one worker of a class, stand for others. *Values* are the edits of `Neighbourhood.further` of the same bases: the first
slices of a base have every field and kind of edit. *Pairs* of edits are drawn, of all bases: three quarters as
`search.pairs` does; of the others each edit alone is SAFE. A *difference* is a hole, an accepted certificate of what is
refused for another reason than those of `account.beyond`, or a failure of the tool itself.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Any

from amk.adversary.neighbourhood.account import account, beyond
from amk.adversary.neighbourhood.bases import SMALL_BASES, STAND_FOR_MORE, WHOLE, base
from amk.adversary.neighbourhood.ledger import Line, counts, key_of
from amk.adversary.neighbourhood.mutator import Change, Neighbourhood, schema_of_schedules
from amk.adversary.neighbourhood.search import both, in_turns, pairs
from amk.adversary.neighbourhood.survey import EVERYTHING, TOO_MUCH, Care, Outcome, Survey
from amk.schedule_ir.schedule import Schedule
from tests.adversarial.emulated import Emulated

PARTS = 128
LATER = frozenset({"KvLayout.turns"})
"""Fields whose edits are in the last parts, so that a run that was begun without them goes on."""
SLICES = PARTS * len(WHOLE)
SPLIT_PARTS = 128
SPLIT_SLICES = SPLIT_PARTS * len(WHOLE)
ABSTRACT_SLICES = PARTS * len(STAND_FOR_MORE)
VALUE_PARTS = 64
VALUE_SLICES = VALUE_PARTS * len(WHOLE)
PAIRS, SAFE_PAIRS, PAIR_PARTS = 75, 25, 24
PAIR_SLICES = PAIR_PARTS * len(SMALL_BASES)
THOROUGH = 6
ALONE = Care(safe=0, other=0, certificates=False)
SHOWN = 300
"""Characters of an edit that a record repeats."""


@lru_cache(maxsize=len(WHOLE))
def edits_of(name: str) -> tuple[list[list[Change]], Counter[str], Survey]:
    """(the edits of each part, edits of each field). Fields of LATER do not move others to another part."""
    changes = list(Neighbourhood(base(name), schema_of_schedules()).changes())
    drawn = [change for change in changes if change.field not in LATER]
    Random(name).shuffle(drawn)
    parts = [drawn[part::PARTS] for part in range(PARTS)]
    for number, change in enumerate(change for change in changes if change.field in LATER):
        parts[PARTS - 1 - number % PARTS].append(change)
    return parts, Counter(change.field for change in changes), Survey(base(name))


@lru_cache(maxsize=len(WHOLE))
def splits_of(name: str) -> tuple[list[Change], Counter[str], Survey]:
    """The same of entries in two."""
    changes = list(Neighbourhood(base(name), schema_of_schedules()).splits())
    Random(f"{name} splits").shuffle(changes)
    return changes, Counter(change.field for change in changes), Survey(base(name))


@lru_cache(maxsize=len(WHOLE))
def values_of(name: str) -> tuple[list[Change], Counter[str], Survey]:
    """The same of the edits that `edits_of` lacks, the first of every field and kind before the second of any."""
    changes = in_turns(Neighbourhood(base(name), schema_of_schedules()).further(), Random(f"{name} values"))
    return changes, Counter(change.field for change in changes), Survey(base(name))


def neighbourhood_slice(number: int) -> dict[str, Any]:
    """One part of the edits of one base."""
    name, part = WHOLE[number % len(WHOLE)], number // len(WHOLE)
    parts, of_field, survey = edits_of(name)
    return executed(name, parts[part], of_field, survey, f"slice {number}")


def values_slice(number: int) -> dict[str, Any]:
    """One part of the further edits of one base."""
    name, part = WHOLE[number % len(WHOLE)], number // len(WHOLE)
    changes, of_field, survey = values_of(name)
    chosen = changes[len(changes) * part // VALUE_PARTS : len(changes) * (part + 1) // VALUE_PARTS]
    return executed(name, chosen, of_field, survey, f"slice {number}")


def pairs_slice(number: int) -> dict[str, Any]:
    """Drawn pairs of edits of one base."""
    name, part = sorted(SMALL_BASES)[number % len(SMALL_BASES)], number // len(SMALL_BASES)
    survey, every = Survey(base(name)), pairs(name, part)
    changes = [both(*pair) for pair in islice(every, PAIRS)]
    safe = (pair for pair in every if all(survey.outcome(edit, ALONE).verdict == "SAFE" for edit in pair))
    changes += [both(*pair) for pair in islice(safe, SAFE_PAIRS)]
    of_field = Counter(change.field for change in changes)
    if name in STAND_FOR_MORE:
        return surveyed(name, changes, of_field, survey)
    return executed(name, changes, of_field, survey, f"slice {number}")


def executed(name: str, changes: list[Change], of_field: Counter[str], survey: Survey, by: str) -> dict[str, Any]:
    """What became of each, on the numpy machine and, if it is SAFE, as a kernel in the emulator."""
    lines, emulated = [], Emulated(by)
    for change in changes:
        outcome = survey.outcome(change)
        line = Line(name, key_of(name, change), change.field, change.kind, outcome, edits=change.key)
        lines.append(line)
        if outcome.verdict == "SAFE" or _accepted(outcome):
            emulated.judge(_schedule(survey, change), _named(line), change.field, drawn(line.key, of_field[line.field]))
    found = counted(name, lines)
    found["differences"] += emulated.refutations
    return found | {"emulated": emulated.as_json()}


def splits_slice(number: int) -> dict[str, Any]:
    """One part of the splits of one base."""
    name, part = WHOLE[number % len(WHOLE)], number // len(WHOLE)
    changes, of_field, survey = splits_of(name)
    return surveyed(name, changes[part::SPLIT_PARTS], of_field, survey)


def abstract_slice(number: int) -> dict[str, Any]:
    """One part of the edits of one base in which what is looked at stands for more."""
    name, part = STAND_FOR_MORE[number % len(STAND_FOR_MORE)], number // len(STAND_FOR_MORE)
    parts, of_field, survey = edits_of(name)
    return surveyed(name, parts[part], of_field, survey)


def surveyed(name: str, changes: list[Change], of_field: Counter[str], survey: Survey) -> dict[str, Any]:
    """What became of each, on the numpy machine alone."""
    lines = []
    for change in changes:
        key = key_of(name, change)
        care = Care(safe=EVERYTHING if drawn(key, of_field[change.field]) else 1)
        lines.append(Line(name, key, change.field, change.kind, survey.outcome(change, care), edits=change.key))
    found = counted(name, lines)
    thorough = [line.field for line in lines if line.outcome.verdict == "SAFE" and line.outcome.asked == EVERYTHING]
    return found | {"judged by everything": Counter(thorough)}


def drawn(key: str, edits: int) -> bool:
    """Of so many edits of a field of a base about THOROUGH are."""
    return int(key[:8], 16) % max(1, edits // THOROUGH) == 0


def _schedule(survey: Survey, change: Change) -> Schedule:
    return Schedule.model_validate_json(json.dumps(survey.edited(change)))


def counted(name: str, lines: list[Line]) -> dict[str, Any]:
    """Of one base."""
    outcomes = [line.outcome for line in lines]
    beside = [line for line in lines if line.outcome.verdict not in ("SAFE", "error") and _accepted(line.outcome)]
    unknown = [line for line in beside if not beyond(line)]
    exceptions = [line for line in lines if line.outcome.hole or _broken(line.outcome) or line in unknown]
    seconds: Counter[str] = Counter()
    for outcome in outcomes:
        seconds.update(outcome.seconds)
    return {
        "edits": len(lines),
        "holes": sum(bool(outcome.hole) for outcome in outcomes),
        "bases": {name: {"edits": len(lines)} | Counter(outcome.verdict for outcome in outcomes)},
        "fields": counts(lines),
        "account": {row.code: row.as_json() for row in account(lines)},
        "not SAFE, certificate accepted": Counter(
            f"{' '.join(line.outcome.codes)}: {line.field}, {line.kind}" for line in beside
        ),
        "without a verdict": Counter(f"{line.outcome.why}: {name}" for line in lines if line.outcome.why in TOO_MUCH),
        "times": {stage: round(time, 1) for stage, time in seconds.items()},
        "differences": [_said(line) for line in exceptions],
    }


def _accepted(outcome: Outcome) -> bool:
    return outcome.certificate.startswith("accepted")


def _broken(outcome: Outcome) -> bool:
    return outcome.verdict == "error" and outcome.why not in TOO_MUCH


def _said(line: Line) -> str:
    outcome = line.outcome
    what = f"passes {outcome.hole}, {outcome.judge}" if outcome.hole else "error"
    if outcome.verdict != "error" and not outcome.hole:
        what = f"the checker accepts what is refused for {' '.join(outcome.codes)}"
    return f"{_named(line)}: {what}: {outcome.why[:SHOWN]}"


def _named(line: Line) -> str:
    return f"{line.base}: {line.field}, {line.kind}: {line.edits[:SHOWN]}"
