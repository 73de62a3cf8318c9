"""Whose bytes are whose: what the host keeps, what copies fill, what an op has for each of its fields.

Property:
    state      what one launch leaves to the next is named by the steps alone that are about it
    rings      the bytes of a ring and of its mbarriers belong to one stream: no other shared buffer lies there, no
               stream uses them twice, and no step names them
    fields     an op has different buffers for different fields: it orders what it does to one field, not to two

An op's field for a constant holds that one: `references` fixes the name, `structure` that of scales, `launch_needs`
that the host fills it. Which bytes of it are read follows from the op alone (`accesses`). A read of a constant where
the op needs what a step computed finds that no step wrote it (`footprint`).

Codes: AMK106 for what is kept for something else, AMK301 for rings, AMK302 for fields. Cost: one look at every step as
written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.references import buffer_fields
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.trace import Path, all_sites

KEPT: Final = frozenset({"state", "k_cache", "v_cache"})
"""What a launch leaves to the next one, each for the op fields of that name."""


def check_owners(schedule: Schedule) -> list[Diagnostic]:
    """All findings."""
    return [*_fields(schedule), *_rings(schedule)]


def _fields(schedule: Schedule) -> Iterator[Diagnostic]:
    """What steps name."""
    rings = {name: stream.name for stream in schedule.streams for name in (stream.ring, stream.full) if name}
    constants = {buffer.name for buffer in schedule.buffers if buffer.role == "constant"}
    for site in all_sites(schedule):
        op, seen = site.step.op, dict[str, str]()
        for field in buffer_fields(type(op)):
            name: str | None = getattr(op, field)
            if name is None:
                continue
            path = (*site.path, "op", field)
            if name in rings:
                message = f"{field} of {op.op} is '{name}', where copies of '{rings[name]}' land"
                yield finding("AMK301", message, path, "weight copies land there at any time of the launch")
            elif name in KEPT and field != name:
                message = f"{field} of {op.op} is '{name}', which is kept for the next launch"
                yield finding("AMK106", message, path, "what is kept there has one meaning for all launches")
            elif name in seen and name not in constants and not op.in_place.issuperset((seen[name], field)):
                message = f"{op.op} has '{name}' for {seen[name]} and for {field}"
                yield finding("AMK302", message, path, "an op orders its accesses of one field, not those of two")
            seen[name] = field


@dataclass(frozen=True)
class _Use:
    """Bytes [lo, hi) of shared memory and what they are."""

    what: str
    lo: int
    hi: int
    ring: bool
    path: Path


def _use(buffer: Buffer, what: str, ring: bool, path: Path) -> _Use:
    start = buffer.offset or 0
    return _Use(what, start, start + buffer.bytes, ring, path)


def _rings(schedule: Schedule) -> Iterator[Diagnostic]:
    """Copies land at any time of the launch, so nothing else may live in the bytes of rings and mbarriers."""
    shared = {b.name: b for b in schedule.buffers if b.space == "shared"}
    uses, taken = list[_Use](), set[str]()
    for number, stream in enumerate(schedule.streams):
        for field, name in (("ring", stream.ring), ("full", stream.full)):
            if name in shared:
                uses.append(_use(shared[name], f"{field} of '{stream.name}'", True, ("streams", number)))
                taken.add(name)
    uses += [_use(b, f"'{name}'", False, ()) for name, b in shared.items() if name not in taken]
    for one, other in combinations(uses, 2):
        lo, hi = max(one.lo, other.lo), min(one.hi, other.hi)
        if one.ring and lo < hi:
            message = f"{other.what} shares bytes {lo}..{hi - 1} with the {one.what}"
            yield finding("AMK301", message, one.path, "weight copies land there at any time of the launch")
    sources = dict[str, str]()
    for number, stream in enumerate(schedule.streams):
        if sources.setdefault(stream.source, stream.name) != stream.name:
            message = f"'{stream.source}' is the source of '{sources[stream.source]}' and of '{stream.name}'"
            yield finding("AMK106", message, ("streams", number, "source"), "the host packs it for one stream")
