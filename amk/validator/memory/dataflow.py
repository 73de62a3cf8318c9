"""Reads-from: every byte read holds the value the model's dataflow intends.

Property: for every read (and accumulation) with value v and displacement d, the last write of each of its bytes that
must happen before it has value v and displacement d; a value that is accumulated is complete when it is read; every
final byte was last written as required. Displacement = logical element offset minus buffer offset, in bytes, so equal
(v, d) at one byte means the same element of the same tensor.

Assumptions: `find_races` found nothing. Then the writes of an atom are totally ordered and each read is ordered against
all of them, so "the last write before it in one run" is the last in every run. In a racy system a fault found here is
still real: it happens in the run itself.

Algorithm: along each atom in run order, the last non-read touch before each read. An accumulation expects its value to
be there already (zeroed or partly summed) and keeps it. A read whose next non-read touch adds to the value it read is
partial. Value `DONT_CARE` exempts a read; written, it is content that satisfies no reader; an accumulation of it may
only meet nothing or `DONT_CARE`, so that the verdict does not depend on the order of commuting accumulations.

Cost: linear in incidences.

Witness: the run up to the faulty read, with the byte; see `witness`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from amk.validator.memory.atoms import Block, Touches
from amk.validator.program.system import DONT_CARE, I64, READ, WRITE, Bools

FaultKind = Literal["uninitialised", "stale", "partial"]
KINDS: Final[tuple[FaultKind, ...]] = ("uninitialised", "stale", "partial")


@dataclass(frozen=True)
class Fault:
    """``event`` reads bytes lo..hi-1 and finds content left by ``writer`` (-1: initial content, None: nothing).

    ``event`` is -1 for the required final content. For kind "partial" ``writer`` is the event that adds too late.
    """

    kind: FaultKind
    event: int
    buffer: int
    lo: int
    hi: int
    expected: tuple[int, int]
    found: tuple[int, int] | None
    writer: int | None


@dataclass(frozen=True)
class DataflowReport:
    correct: bool
    faults: tuple[Fault, ...]
    truncated: bool


def _around(atom: I64, defines: Bools, looked: I64) -> tuple[I64, I64]:
    """Per position that is looked at the last defining one before it and the first after it, -1 where its atom has
    none."""
    definers, upto = np.append(np.flatnonzero(defines), -1), np.cumsum(defines)
    behind = upto.take(looked)
    before, after = definers.take(behind - defines.take(looked) - 1), definers.take(behind)
    own = atom.take(looked)
    return (
        np.where((before >= 0) & (atom.take(before) == own), before, -1),
        np.where((after >= 0) & (atom.take(after) == own), after, -1),
    )


def _faults_in(block: Block) -> tuple[I64, I64, I64]:
    """(incidence, kind as index into KINDS, position of the guilty definition or -1)."""
    touches, touch = block.touches, block.touch
    kind = touches.kind.take(touch)
    looked = np.flatnonzero(kind != WRITE)
    before, after = _around(block.atom, kind != READ, looked)
    own, left, later = touch.take(looked), touch.take(before), touch.take(after)
    value, delta, reads = touches.value.take(own), touches.delta.take(own), kind.take(looked) == READ
    cares = value != DONT_CARE
    absent = before < 0
    wrong = (touches.value.take(left) != value) | ((touches.delta.take(left) != delta) & cares)
    added = reads & (after >= 0) & (touches.kind.take(later) != WRITE)
    added &= (touches.value.take(later) == value) & (touches.delta.take(later) == delta)
    exempt = ~cares & (reads | absent)
    bad = np.flatnonzero(~exempt & (absent | wrong | added))
    code = np.where(absent[bad], 0, np.where(wrong[bad], 1, 2))
    return looked[bad], code, np.where(code == 2, after[bad], before[bad])


def _describe(block: Block, incidence: int, code: int, guilty: int) -> Fault:
    touches: Touches = block.touches
    touch = int(block.touch[incidence])
    buffer, lo, hi = touches.span(int(block.atom[incidence]))
    expected = (int(touches.value[touch]), int(touches.delta[touch]))
    if guilty < 0:
        return Fault(KINDS[code], int(touches.event[touch]), buffer, lo, hi, expected, None, None)
    other = int(block.touch[guilty])
    found = (int(touches.value[other]), int(touches.delta[other]))
    return Fault(KINDS[code], int(touches.event[touch]), buffer, lo, hi, expected, found, int(touches.event[other]))


def find_faults(blocks: Iterable[Block], limit: int | None = 64) -> DataflowReport:
    """Decide reads-from; list up to ``limit`` faults (None: all), one per (read, atom)."""
    faults: list[Fault] = []
    total = 0
    for block in blocks:
        bad, code, guilty = _faults_in(block)
        total += len(bad)
        room = len(bad) if limit is None else max(0, limit - len(faults))
        for row in zip(bad[:room].tolist(), code[:room].tolist(), guilty[:room].tolist(), strict=True):
            faults.append(_describe(block, *row))
        if limit is not None and total > limit:
            break
    return DataflowReport(total == 0, tuple(faults), total > len(faults))
