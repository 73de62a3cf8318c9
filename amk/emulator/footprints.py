"""What every step of a run touched, beside what its op declares (`accesses`).

Property: for each step that a warp ran, every byte that its instructions read or wrote is compared with the declared
    reads and writes of that op, worker, agent, layer and position, in both directions.
Assumes: instructions belong to steps as `steps` says. The compiler moves one by less than half a loop's body.
    The rings of weights and their mbarriers are not in `accesses`; only steps that drain or refill a ring, and what
    comes before all steps, may touch them. Prefetches are no reads.
Algorithm: the steps of a warp, loops unrolled, in order. Each touch goes to the occurrence of its step that is nearest
    to the last one, of two to the later one: warps meet between parts of a product, so nothing is moved back. What the
    nearest does not declare and the next one does begins the next one, as a warp may touch nothing between the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from amk.emulator.memory import state
from amk.emulator.memory.touched import COPIED_TO, WRITE
from amk.emulator.steps import ABORT, COUNTERS, LOG, NO_CALL, PREFETCH, SHARED, Spans, Steps, Touched, Visit, merged
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp

Kind = Literal["undeclared read", "undeclared write", "unwritten", "unread"]


@dataclass(frozen=True)
class Mismatch:
    """Bytes [lo, hi) of a buffer that one step of one warp touched and its op does not declare, or the reverse.

    op: its name, "none" outside all steps. loops: n, t and l. buffer: a global one, or "shared", of the worker.
    """

    kind: Kind
    op: str
    worker: int
    agent: int
    loops: tuple[tuple[str, int], ...]
    buffer: str
    lo: int
    hi: int

    def __str__(self) -> str:
        at = ", ".join(f"{name} {value}" for name, value in self.loops)
        who = f"{self.op}, worker {self.worker}, agent {self.agent}, {at}"
        return f"{self.kind} of {self.buffer} [{self.lo}, {self.hi}): {who}"


def mismatches(steps: Steps) -> list[Mismatch]:
    """AMK803 if the log of touches was full."""
    return list(_Comparison(steps).all())


def without(spans: Spans, others: Spans) -> Spans:
    """What of `spans` is in none of `others`."""
    out: Spans = []
    others = merged(others)
    for lo, hi in merged(spans):
        for first, end in others:
            if end <= lo or first >= hi:
                continue
            if lo < first:
                out.append((lo, first))
            lo = end
        if lo < hi:
            out.append((lo, hi))
    return out


def _allowed(declared: Touched, writes: bool, buffer: str) -> Spans:
    """What a step may write, or read: what it writes as well."""
    return declared.get((True, buffer), []) + ([] if writes else declared.get((False, buffer), []))


def _nearest(places: list[int], now: int) -> list[int]:
    """The place nearest to `now`, of two the later one, and the next one if there is any."""
    number = min(range(len(places)), key=lambda k: (abs(places[k] - now), -k))
    return places[number : number + 2]


class _Comparison:
    def __init__(self, steps: Steps) -> None:
        self.steps, self.machine, schedule = steps, steps.machine, steps.schedule
        names = {name for stream in schedule.streams for name in (stream.ring, stream.full)}
        self.ring = merged([steps.absolute(b.name, 0, b.bytes)[1] for b in schedule.buffers if b.name in names])
        self.weights = {stream.source for stream in schedule.streams}

    def all(self) -> Iterator[Mismatch]:
        rows = self.machine.touches()
        warps = rows[:, 0] >> 32
        for number in range(self.machine.blocks * self.machine.warps):
            worker, warp = divmod(number, self.machine.warps)
            yield from self._warp(worker, warp, rows[warps == number])

    def _warp(self, worker: int, warp: int, rows: state.Words) -> Iterator[Mismatch]:
        visits = [visit for visit in self.steps.visits(worker, warp) if visit.number != NO_CALL]
        places: dict[int, list[int]] = defaultdict(list)
        for index, visit in enumerate(visits):
            places[visit.number].append(index)
        declared = [self.steps.declared(worker, visit) for visit in visits]
        touched: list[Touched] = [defaultdict(list) for _ in visits]
        outside: Touched = defaultdict(list)
        now = 0
        for key, lo, hi in rows.tolist():
            step, kind = self.steps.step_of[key >> 8 & 0xFFFFFF], key & 255
            if step == PREFETCH:
                continue
            buffer, span = self.steps.buffer(lo, hi, worker)
            if buffer is None or buffer in (COUNTERS, LOG, ABORT):
                continue
            into, writes = outside, kind in (WRITE, COPIED_TO)
            if places[step]:
                nearest = _nearest(places[step], now)
                fits = [at for at in nearest if not without([span], _allowed(declared[at], writes, buffer))]
                now, into = max(now, (fits or nearest)[0]), touched[(fits or nearest)[0]]
            into[writes, buffer].append(span)
        for visit, declaration, found in zip(visits, declared, touched, strict=True):
            yield from self._step(worker, visit, declaration, found)
        for (writes, buffer), spans in outside.items():
            left = [] if buffer in self.weights else without(spans, self.ring if buffer == SHARED else [])
            for lo, hi in left:
                yield Mismatch(
                    "undeclared write" if writes else "undeclared read", "none", worker, warp, (),
                    buffer or "shared", lo, hi,
                )  # fmt: skip

    def _step(self, worker: int, visit: Visit, declared: Touched, actual: Touched) -> Iterator[Mismatch]:
        beside: dict[str, Spans] = {}
        if isinstance(visit.op, GemvOp | RefillOp):
            beside = {SHARED: self.ring} | {name: [(0, 1 << 62)] for name in self.weights}
        for buffer in sorted({name for _, name in (*declared, *actual)}):
            more = beside.get(buffer, [])
            read, written = actual.get((False, buffer), []), actual.get((True, buffer), [])
            reads, writes = declared.get((False, buffer), []), declared.get((True, buffer), [])
            kinds: tuple[tuple[Kind, Spans], ...] = (
                ("undeclared read", without(read, _allowed(declared, False, buffer) + more)),
                ("undeclared write", without(written, _allowed(declared, True, buffer) + more)),
                ("unwritten", without(writes, written)),
                ("unread", without(reads, read)),
            )
            for kind, spans in kinds:
                for lo, hi in spans:
                    yield Mismatch(
                        kind, visit.op.op, worker, visit.agent, tuple(sorted(visit.loops.items())),
                        buffer or "shared", lo, hi,
                    )  # fmt: skip
