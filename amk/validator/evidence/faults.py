"""Wrong content: confirmed by what the two steps touch where that is enough, else by a run of the flat
    system.

Property: evidence is of a run of the flat system, with edges of words, that reads (or ends with) what the fault says.

Argument for `evident_fault`, which makes no flat system. The composition has every access of every position in the
order of a run, and says that nothing was written before the read, or that `writer` left what is there. Accesses of
one position are among those, so if the two steps touch a common byte at this position as the composition says, the
same run at this position reads the same there. So does a run of the flat system if nothing races: then what a byte
holds when it is read is the same in all runs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from amk.validator.evidence.compact import GONE
from amk.validator.evidence.confirm import Confirmer, Evidence, Made, Place, fits, large, positions
from amk.validator.evidence.flat_system import Flat, expand
from amk.validator.evidence.witness import fault_witness
from amk.validator.memory.atoms import blocks, touches_of
from amk.validator.memory.composition import Composition
from amk.validator.memory.dataflow import Fault, find_faults
from amk.validator.order.greedy_run import greedy
from amk.validator.order.within_cta import NotComposable
from amk.validator.program.system import I64, READ, WRITE
from amk.validator.program.trace import TooLarge, Trace


def evident_fault(result: Composition, fault: Fault, reader: Place | None, writer: Place | None) -> Evidence | None:
    """Wrong content that needs no flat system to be sure of; reader None: at the end."""
    touching = _touching(fault, reader, writer)
    if not fits(result, None if touching is None else len(touching)):
        return None

    def later(pos: int) -> Made:
        make = _at(result, fault, reader, touching, pos)
        assert make is not None, "every run shows it"
        return make()

    for pos in positions(result, _workers(reader, writer)):
        if _evident(result, fault, reader, writer, pos):
            return Evidence(_kind(fault, reader), "word", pos, lambda p=pos: later(p), large(result))  # type: ignore[misc]
    return None


def confirmed_fault(result: Composition, fault: Fault, reader: Place | None, writer: Place | None) -> Evidence | None:
    """Wrong content that some run of the flat system finds too; reader None: at the end."""
    if evidence := evident_fault(result, fault, reader, writer):
        return evidence
    for pos in positions(result, _workers(reader, writer)):
        try:
            if make := _at(result, fault, reader, _touching(fault, reader, writer), pos):
                return Evidence(_kind(fault, reader), "word", pos, make, large(result))
        except (TooLarge, NotComposable):
            return None
    return None


def _kind(fault: Fault, reader: Place | None) -> str:
    return fault.kind if reader else "final"


def _workers(*places: Place | None) -> frozenset[int]:
    return frozenset(place[1] for place in places if place)


def _touching(fault: Fault, reader: Place | None, writer: Place | None) -> frozenset[int] | None:
    """Workers whose accesses show the fault; None: all."""
    return _workers(reader, writer) if reader and fault.kind != "uninitialised" else None


def _at(
    result: Composition, fault: Fault, reader: Place | None, touching: frozenset[int] | None, pos: int
) -> Callable[[], Made] | None:
    """What makes the witness of such a fault of a run at this position, if one is found."""
    flat = expand(result.schedule, pos, result.tokens, "word", touching, brief=True)
    wanted = set(_flat_events(flat, *reader)) if reader else {-1}
    run = greedy(flat.system)
    faults = find_faults(blocks(touches_of(run)), None).faults
    found = next((f for f in faults if f.event in wanted and f.kind == fault.kind), None)
    return None if found is None else lambda: (run.system, fault_witness(run, found))


def _evident(result: Composition, fault: Fault, reader: Place | None, writer: Place | None, pos: int) -> bool:
    """Does a run of the flat system at this position show the fault? False says nothing. See above."""
    if result.strict is None or result.at is not None or fault.kind == "partial" or not result.unraced:
        return False
    shared = fault.buffer - len(result.schedule.buffers)
    if shared >= 0 and (reader is None or shared % len(result.private) or (writer and writer[1] != reader[1])):
        return False
    buffer = fault.buffer if shared < 0 or reader is None else len(result.schedule.buffers) + reader[1]
    confirmer = Confirmer(result, "word")

    def spans(place: Place, kind: int, content: tuple[int, int] | None) -> I64:
        rows = np.concatenate([one.rows for one in confirmer._touching(place, pos)])
        same = (rows[:, 0] == buffer) & (rows[:, 3] == kind) & (rows[:, 4:] == content).all(axis=1)
        found: I64 = np.clip(rows[same, 1:3], fault.lo, fault.hi)
        return found

    read = spans(reader, READ, fault.expected) if reader else np.array([[fault.lo, fault.hi]])
    if fault.kind == "uninitialised":
        return bool((read[:, 0] < read[:, 1]).any())
    if writer is None or writer == reader:
        return False
    left = spans(writer, WRITE, fault.found)
    return bool((np.maximum(read[:, :1], left[:, 0]) < np.minimum(read[:, 1:], left[:, 1])).any())


def _flat_events(flat: Flat, trace: Trace, worker: int, item: int) -> list[int]:
    number = next(i for i, t in enumerate(flat.traces) if t.program.first == trace.program.first)
    members = trace.event_of[item]
    found = flat.event_id[number][worker - trace.program.first, members[members >= 0]]
    return [int(event) for event in found if event != GONE]
