"""The search for a fix: small edits of an unsafe schedule, each verified, the first SAFE one is offered.

A fix is only ever offered with its proof: `Repair.verdict` is SAFE for the schedule `Repair.schedule`. Which families
of edits are tried first follows from the code of the finding; families take turns, so that the best guess of each
comes early. Nothing is offered when the time is over.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from amk.adversary.edits import Json, apply
from amk.repair import data_edits, sync_edits
from amk.repair.scene import Candidate, Scene, scene
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import Verdict, verify

Family = Callable[[Scene], Iterator[Candidate]]

SYNC: Final[tuple[Family, ...]] = (
    sync_edits.orders, data_edits.overlaps, data_edits.counters, sync_edits.thresholds, sync_edits.signals,
    sync_edits.barriers, sync_edits.missing_waits, sync_edits.moves, sync_edits.missing_signals, sync_edits.waits,
)  # fmt: skip
DATA: Final[tuple[Family, ...]] = (
    data_edits.launch, data_edits.streams, data_edits.overlaps, data_edits.shares, data_edits.fields,
    data_edits.tables, data_edits.tags, data_edits.shapes, data_edits.buffers, sync_edits.removals,
)  # fmt: skip
FIRST: Final[dict[str, tuple[Family, ...]]] = {
    "AMK105": (sync_edits.barriers, data_edits.fields),
    "AMK402": (data_edits.launch,),
    "AMK401": (data_edits.launch,),
    "AMK505": (data_edits.counters,),
    "AMK507": (data_edits.streams,),
    "AMK508": (data_edits.plain_operations,),
    "AMK510": (data_edits.plain_operations,),
    "AMK511": (data_edits.plain_operations,),
    "AMK512": (data_edits.plain_operations,),
    "AMK501": (sync_edits.barriers,),
    "AMK502": (sync_edits.orders,),
    "AMK503": (sync_edits.orders,),
    "AMK504": (sync_edits.barriers,),
    "AMK506": (sync_edits.orders,),
    "AMK513": (data_edits.tags,),
    "AMK101": (data_edits.shares,),
    "AMK102": (data_edits.shares,),
    "AMK404": (data_edits.fields,),
    "AMK406": (data_edits.overlaps,),
    "AMK201": (sync_edits.thresholds, sync_edits.moves),
    "AMK202": (sync_edits.missing_signals, sync_edits.thresholds, sync_edits.signals),
}
"""Families that take turns before the others do."""
ABOUT_ORDER: Final = frozenset({"AMK104", "AMK105", "AMK501", "AMK502", "AMK503", "AMK504", "AMK506", "AMK509"})
"""Further codes that edits of waits, signals and order are likely to repair."""
HEAD: Final = 24
"""Candidates of a family that come first."""
SHARE: Final = 40
"""Candidates of a family before those of another kind get their turn."""


@dataclass(frozen=True, eq=False)
class Repair:
    """schedule is SAFE by `verdict`; before and document are the JSON of the original and of it; tried: candidates."""

    description: str
    schedule: Schedule
    before: Json
    document: Json
    verdict: Verdict
    tried: int


def find_repair(schedule: Schedule, verdict: Verdict, seconds: float) -> Repair | None:
    """The first candidate that is SAFE, looked for at most `seconds` of computing; None for a schedule that is SAFE.

    Time is that of the processor, so that a busy machine offers the same fixes as an idle one.
    """
    if verdict.safe or not verdict.diagnostics:
        return None
    until = time.process_time() + seconds
    start = scene(schedule, verdict)
    seen: set[str] = set()
    for tried, candidate in enumerate(candidates(start), 1):
        left = until - time.process_time()
        if left <= 0:
            return None
        document = apply(start.document, candidate.edits)[0]
        text = json.dumps(document, sort_keys=True)
        if text in seen:
            continue
        seen.add(text)
        judgement = _judged(text)
        if judgement is not None:
            return Repair(candidate.description, judgement[0], start.document, document, judgement[1], tried)
    return None


def candidates(start: Scene) -> Iterator[Candidate]:
    """The families of the code first, then all that fit its area in turn."""
    code = start.codes[0]
    yield from _in_turn([itertools.islice(family(start), HEAD) for family in FIRST.get(code, ())])
    sync = code[3] in "23" or code in ABOUT_ORDER
    for tier in (SYNC, DATA) if sync else (DATA, SYNC):
        yield from _in_turn([itertools.islice(family(start), SHARE) for family in tier])
    yield from _in_turn([itertools.islice(family(start), SHARE, None) for family in (*SYNC, *DATA)])


def _in_turn(running: list[Iterator[Candidate]]) -> Iterator[Candidate]:
    while running:
        for candidates_ in list(running):
            candidate = next(candidates_, None)
            if candidate is None:
                running.remove(candidates_)
            else:
                yield candidate


def _judged(text: str) -> tuple[Schedule, Verdict] | None:
    """The schedule with its verdict if it is one and is SAFE."""
    try:
        schedule = Schedule.model_validate_json(text)
        verdict = verify(schedule)
    except (ValidationError, AmkError):
        return None
    return (schedule, verdict) if verdict.safe else None
