"""Mutants of full-size plans, llama3-8b on all SMs of an h200, with and without tagged words.

The validator judges all 32 layers. The oracle would need weeks for them, so it judges the same mutation (same
generator, same seed) of the plan of the same model with 2 layers, everything else full-size: 132 workers of 8 warps,
85,000 to 160,000 segments, two tokens, at a position inside the first block or at one that fills every split in turn;
every conflicting pair by withholding (`amk.judges.oracle`). Where the two mutations are not the same edits of the
same steps the seed is passed over.
"""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any

from amk.adversary.classes.table import BY_NUMBER, CLASSES
from amk.adversary.confusion import HEAD, Outcome, Table, certified, schedule_of
from amk.adversary.edits import Edit, apply
from amk.adversary.subjects import full_size
from amk.judges.oracle.judge import last_start, rule
from amk.judges.replay import replay
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import verify

SMALL_ONLY = frozenset({5, 6, 18, *range(23, 36)})
"""Flat systems, and mutations of plans that are made for few workers."""
PLANS = tuple(c.number for c in CLASSES if c.number not in SMALL_ONLY)
LAYERS, TOKENS, SEGMENTS, TRIES = 2, 2, 400_000, 60


def drawn(number: int, seed: str, model: ModelSpec) -> tuple[Schedule, Schedule]:
    """(with all layers, with two) of the first attempt at which both are well-formed and the same mutation."""
    for attempt in range(TRIES):
        mutants = [
            _mutant(number, f"{seed}/{attempt}", m) for m in (model, model.model_copy(update={"layers": LAYERS}))
        ]
        whole, cut = mutants
        if whole is not None and cut is not None and whole[1] == cut[1]:
            return whole[0], cut[0]
    raise ValueError(f"class {number} makes nothing of full size from seed {seed}")


def _mutant(number: int, seed: str, model: ModelSpec) -> tuple[Schedule, list[tuple[Any, ...]]] | None:
    """The mutant and where its edits are."""
    with full_size(model):
        try:
            base, edits = BY_NUMBER[number].generate(Random(seed))  # type: ignore[misc]
            return schedule_of(apply(base.document, edits)[0]), [_place(edit) for edit in edits]
        except (AmkError, LookupError, ValueError):
            return None


def _place(edit: Edit) -> tuple[Any, ...]:
    """What the edit does, without numbers that depend on how many layers there are."""
    shape = sorted(edit.value) if isinstance(edit.value, dict) else type(edit.value).__name__
    return edit.do, edit.path, json.dumps(shape)


def telling(schedule: Schedule, turn: int) -> int:
    """A position inside the first block, or one that fills every split, as far as the context goes."""
    kv = schedule.kv
    wanted = (kv.block - 1, kv.block * (kv.splits - 1))[turn % 2]
    return min(wanted, last_start(schedule, TOKENS))


def decide(number: int, seed: str, turn: int, model: ModelSpec) -> tuple[Outcome, dict[str, float]]:
    """Both judges, and the seconds of each part."""
    began = time.monotonic()
    whole, cut = drawn(number, seed, model)
    clock = [time.monotonic()]
    found = verify(whole)
    clock.append(time.monotonic())
    replayed = None
    if found.evidence is not None:
        replayed = replay(found.evidence.system.to_json(), found.evidence.witness.to_json())
    uncertified = certified(whole) if found.safe else ""
    clock.append(time.monotonic())
    ruling = rule(cut, TOKENS, [telling(cut, turn)], SEGMENTS)
    clock.append(time.monotonic())
    names = ("draw", "verify", "evidence", "oracle")
    seconds = {name: b - a for name, a, b in zip(names, [began, *clock], clock, strict=False)}
    codes = tuple(d.code for d in found.diagnostics)
    return Outcome(str(number), f"{seed}/{number}", found.status, codes, ruling, replayed, uncertified), seconds


def full_size_slice(number: int) -> dict[str, Any]:
    """One mutant; classes in turn."""
    kind, turn = PLANS[number % len(PLANS)], number // len(PLANS)
    outcome, seconds = decide(kind, f"full/{number}", turn, load_model("llama3-8b"))
    table = Table()
    table.add(outcome)
    found = table.as_json()
    heads = {name: found[name] for name in (*HEAD, "unknown_outside")}
    differences = [f"slice {number}: {line}" for line in table.differences]
    return heads | {"seconds": seconds, "classes": found["classes"], "differences": differences}
