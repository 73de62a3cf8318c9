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

from amk.validator.atoms import Block, Touches
from amk.validator.system import DONT_CARE, I64, READ, WRITE, Bools

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


def _neighbours(block: Block, defines: Bools) -> tuple[I64, I64]:
    """Per incidence the last defining position before it and the first after it, -1 where its atom has none."""
    n = len(block.atom)
    position = np.arange(n)
    last = np.maximum.accumulate(np.where(defines, position, -1))
    before = np.concatenate(([-1], last[:-1]))
    following = np.minimum.accumulate(np.where(defines, position, n)[::-1])[::-1]
    after = np.append(following[1:], n)
    starts = np.flatnonzero(block.starts)
    lengths = np.diff(np.append(starts, n))
    low, high = np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)
    return np.where(before >= low, before, -1), np.where(after < high, after, -1)


def _faults_in(block: Block) -> tuple[I64, I64, I64]:
    """(incidence, kind as index into KINDS, position of the guilty definition or -1)."""
    touches = block.touches
    kind, value, delta = touches.kind[block.touch], touches.value[block.touch], touches.delta[block.touch]
    before, after = _neighbours(block, kind != READ)
    cares = value != DONT_CARE
    wrong = (value[before] != value) | ((delta[before] != delta) & cares)
    added = (kind == READ) & (after >= 0) & (kind[after] != WRITE) & (value[after] == value) & (delta[after] == delta)
    code = np.select([before < 0, wrong, added], [0, 1, 2], default=-1)
    exempt = (kind == WRITE) | (~cares & ((kind == READ) | (before < 0)))
    bad = np.flatnonzero(~exempt & (code >= 0))
    return bad, code[bad], np.where(code[bad] == 2, after[bad], before[bad])


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
