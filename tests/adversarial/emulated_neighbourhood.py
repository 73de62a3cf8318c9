"""The kernels of edited small schedules that are SAFE, in the emulator, beside a plain forward pass.

    python -m tests.adversarial.emulated_neighbourhood --jobs 14 --seconds 1500 --record emulated-neighbourhood.json

The recorded neighbourhood runs edits on the numpy machine, which shares the ops' `reference` with what is judged. Here
each edit of the same bases that is SAFE is printed and compiled, and its PTX runs: four tokens in two launches, and for
a drawn tenth, and for fields that are new among the first edits, all that the judge asks. Equal text is compiled once a
slice, and run for every edit, because what the host prepares may differ.

The bases take turns, and the slices of a base begin with one edit of every field, then another of each. A *difference*
is a SAFE edit that a run refutes, or that cannot be printed or compiled.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from functools import cache
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

from pydantic import ValidationError

from amk.adversary.edits import apply
from amk.adversary.neighbourhood.bases import WHOLE, base
from amk.adversary.neighbourhood.ledger import key_of
from amk.adversary.neighbourhood.mutator import Change, Neighbourhood, schema_of_schedules
from amk.adversary.neighbourhood.survey import EVERYTHING, in_time
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, Ruling, judged, requests
from amk.lowering import headers
from amk.lowering.emit import emit
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from tests import long_run
from tests.lowering.edits.judge import built

PARTS = 256
SLICES = PARTS * len(WHOLE)
THOROUGH = 10
"""One edit in so many is judged by everything, drawn by its key."""
FIRST = 32
"""In so many slices of a base the first SAFE edit of a field is judged by everything."""


@cache
def hash_of_base(name: str) -> str:
    return schedule_hash(Schedule.model_validate_json(json.dumps(base(name))))


@cache
def ordered(name: str) -> list[Change]:
    """All single edits of a base: one of every field first, of a drawn kind, then another of each, and so on."""
    changes = list(Neighbourhood(base(name), schema_of_schedules()).changes())
    Random(f"emulated {name}").shuffle(changes)
    of_field: dict[str, list[Change]] = {}
    for change in changes:
        of_field.setdefault(change.field, []).append(change)
    return [change for turn in zip_longest(*of_field.values()) for change in turn if change is not None]


def edits_of(name: str, part: int) -> list[Change]:
    """The part of the edits of a base, which its order has one behind the other."""
    changes = ordered(name)
    return changes[part * len(changes) // PARTS : (part + 1) * len(changes) // PARTS]


def schedule_of(name: str, change: Change) -> Schedule | None:
    """The edited schedule, if it can be read and is another one."""
    try:
        schedule = Schedule.model_validate_json(json.dumps(apply(base(name), list(change.edits))[0]))
    except (ValidationError, LookupError, TypeError, AttributeError):
        return None
    return schedule if schedule_hash(schedule) != hash_of_base(name) else None


def verdict_of(schedule: Schedule) -> str:
    try:
        return in_time(schedule).status
    except AmkError:
        return "refused"


class Kernels:
    """The PTX of schedules; equal texts are compiled once."""

    def __init__(self) -> None:
        self.known: dict[str, str | None] = {}

    def ptx(self, schedule: Schedule) -> str | None:
        """None if it does not compile."""
        source = emit(schedule)
        if source not in self.known:
            self.known[source] = built(source, headers.closure(source), schedule.target.arch)
        return self.known[source]


def ruling(schedule: Schedule, ptx: str, most: int) -> tuple[Ruling, int]:
    """(the first refutation, or whether any request ran; how many did)."""
    machine, found, ran = EmulatedKernel(lambda _: ptx), Ruling("unrun", why="nothing was asked"), 0
    for number, (request, order) in enumerate(requests(schedule)):
        if number == most:
            break
        one = judged(schedule, request, order, machine, DEVICE_TOLERANCE)
        if one.status == "refuted":
            return one, ran + 1
        ran += one.status != "unrun"
        found = one if found.status == "unrun" else found
    return found, ran


def emulated_slice(number: int) -> dict[str, Any]:
    """One part of the edits of one base."""
    name, part = WHOLE[number % len(WHOLE)], number // len(WHOLE)
    kernels, verdicts, rulings = Kernels(), Counter[str](), Counter[str]()
    everything, ran, told, asked = Counter[str](), Counter[str](), [], 0
    for change in edits_of(name, part):
        schedule = schedule_of(name, change)
        verdict = "refused" if schedule is None else verdict_of(schedule)
        verdicts[verdict] += 1
        if schedule is None or verdict != "SAFE":
            continue
        drawn = int(key_of(name, change)[:8], 16) % THOROUGH == 0
        most = EVERYTHING if drawn or (part < FIRST and not ran[change.field]) else 1
        try:
            ptx = kernels.ptx(schedule)
            found, count = (Ruling("refuted", "does not compile"), 0) if ptx is None else ruling(schedule, ptx, most)
        except AmkError as error:
            found, count = Ruling("refuted", f"not printed: {error.diagnostics[0].code}"), 0
        except Exception as error:  # noqa: BLE001  whatever it is, it is told and the others go on
            found, count = Ruling("refuted", f"{type(error).__name__}: {error}"[:200]), 0
        rulings[f"unrun: {found.why[:60]}" if found.status == "unrun" else found.status] += 1
        asked += count
        ran[change.field] += count > 0
        everything[change.field] += most == EVERYTHING and count > 1
        if found.status == "refuted":
            told.append(f"{name}: {change.key[:300]}: {found.kind}: {found.why}"[:600])
    return {
        "edits": sum(verdicts.values()), "verdicts": verdicts, "kernels": len(kernels.known), "runs": asked,
        "rulings": rulings, "bases": {name: {"edits": sum(verdicts.values()), "run": sum(ran.values())}},
        "run": ran, "run with everything": everything, "differences": told,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True, help="JSON file to continue")
    long_run.arguments(parser)
    options = parser.parse_args()
    run = long_run.Run("emulated-neighbourhood", emulated_slice, options.record, SLICES, guess=20.0)
    return long_run.go([run], options)


if __name__ == "__main__":
    sys.exit(main())
