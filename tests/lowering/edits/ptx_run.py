"""Edits of PTX by rule: how many the read-back refuses, and what the emulator finds of the others.

    python -m tests.validator.evidence --only ptx --jobs 14 --seconds 900 --records FOLDER

Of what synchronises the read-back has to refuse each edit that shows. Of the branches and comparisons around it, some
of which are of the arithmetic of ops, it does not: those that show are told. What it admits runs beside the unedited
kernel, which runs beside a plain forward pass in other tests: other tokens, logits or memory, a fault, a hang or a race
show it. An edit of a place that no request executes is counted as such.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from random import Random
from typing import Any

from amk.adversary.neighbourhood.bases import base
from amk.emulator.machine.machine import Order
from amk.lowering import headers
from amk.lowering.emit import emit
from amk.lowering.kernel import read_back
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import Sampling
from amk.schedule_ir.schedule import Schedule
from tests.lowering.edits.emulated import Request, difference, shown
from tests.lowering.edits.judge import built
from tests.lowering.edits.of_ptx import Places, PtxEdit

KERNELS = (
    "fenced", "tagged", "batch, parts of down", "rows, fenced, norms and bias", "drawing, fenced", "sm_80",
    "warps apart, fenced", "warps apart",
)  # fmt: skip
TOP_P = Sampling(0.8, 0, 0.9, 7)
"""What "drawing, fenced" is planned for; the others do not draw."""
REQUESTS = (
    Request("turns", Order(), launches=(2, 1), sampling=TOP_P),
    Request("late position", Order(seed=2, slice=300), launches=(2,), position=6, sampling=TOP_P),
    Request("drawn", Order(seed=1, slice=50), launches=(3,), sampling=TOP_P),
    Request("early copies", Order(eager=True), launches=(2,), sampling=TOP_P),
)
SLICES = 2_000
EDITS = 20
"""Of a slice."""


@cache
def schedule(name: str) -> Schedule:
    return Schedule.model_validate_json(json.dumps(base(name)))


@cache
def original(name: str) -> str:
    source = emit(schedule(name))
    ptx = built(source, headers.closure(source), schedule(name).target.arch)
    assert ptx is not None
    return ptx


@cache
def places(name: str) -> Places:
    return Places(original(name))


@cache
def ordered(name: str, seed: str = "") -> list[PtxEdit]:
    """All edits of a kernel in drawn order, one of every rule and kind of place first, then another of each."""
    edits = list(places(name).edits())
    Random(f"{seed} {name}").shuffle(edits)
    groups: dict[tuple[str, str], int] = {}
    rank: list[int] = []
    for edit in edits:
        key = edit.rule, edit.kind
        groups[key] = rank_of = groups.get(key, -1) + 1
        rank.append(rank_of)
    return [edits[n] for n in sorted(range(len(edits)), key=rank.__getitem__)]


def outcome(name: str, edit: PtxEdit) -> str:
    """refused: and why; not executed; equal; refuted: and what shows it."""
    lines = places(name).lines
    ptx = edit.of(lines)
    try:
        read_back(schedule(name), ptx)
    except AmkError as error:
        return f"refused: {error.diagnostics[0].code}"
    seen = difference(name, schedule(name), original(name), ptx, REQUESTS)
    if seen is not None:
        return f"refuted: {seen}"
    return "equal" if executed(name, edit) else "not executed"


def executed(name: str, edit: PtxEdit) -> bool:
    """Whether any request comes to the place."""
    probed = edit.probed(places(name).lines)
    return any(shown(schedule(name), probed, request).fault for request in REQUESTS[:2])


def ptx_slice(number: int) -> dict[str, Any]:
    """Some edits of one kernel."""
    name = KERNELS[number % len(KERNELS)]
    first = number // len(KERNELS) * EDITS
    counts: Counter[str] = Counter()
    differences = []
    for edit in ordered(name)[first : first + EDITS]:
        found = outcome(name, edit)
        counts[found.partition(":")[0]] += 1
        differences += [f"{name}: {found}: {edit.name(places(name).lines)}"] if found.startswith("refuted") else []
    return {"edits": sum(counts.values()), "outcomes": dict(counts), "differences": differences}
