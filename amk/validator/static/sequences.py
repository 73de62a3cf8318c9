"""Sequences of a live batch, each at a position of its own: nothing that moves with one position is another's business.

Property: what holds at every common position holds at every combination of positions. Why: an op's accesses depend on
one position, that of the sequence whose head its worker serves; waits and signals depend on none; so the accesses at
positions (p_0, .., p_n) are those of each sequence's workers at their own. More reads than another position has are
harmless: all are checked, and only those order anything that every position has. A write that some positions lack could
be missing where another sequence's workers need it. This check decides that none do: then a combination is a product,
and each sequence's part of it is one that a common position has too.

    moving      bytes that a worker of sequence s writes at one of four positions and not at another: the first, the
                last, one of its split and one of another split, between which all others lie (`position_abstraction`)
    apart       no op of another sequence's worker touches them, at whichever of its positions

What a sequence that joins reads is what it wrote: it begins at position 0, at position p it reads the cache rows of
0..p of its heads, and these are written by its own steps at those positions. Positions of a launch stay in the context:
whoever launches sees to that, as for one position.

Algorithm: the accesses of each step that moves at those positions, of all workers, in the first and the last layer;
ranges of one sequence against those of the others, sorted. Code: AMK104. Cost: 10 to 60 us for each agent
of such a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from amk.report.diagnostic import Diagnostic, Where, because
from amk.report.schema import json_pointer
from amk.schedule_ir.expr import Env, IntArray
from amk.schedule_ir.ops import Op
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.trace import Path, Site
from amk.validator.static.structure import all_sites

Range = tuple[int, int, int, bool]
"""(lo, hi, sequence, whether it moves)"""


def check_sequences(schedule: Schedule) -> Iterator[Diagnostic]:
    """All findings, of a live batch."""
    touched: dict[str, list[Range]] = defaultdict(list)
    paths: dict[str, Path] = {}
    evaluation = _Evaluation(schedule)
    sites = [site for site in all_sites(schedule) if type(site.step.op).accesses is not Op.accesses]
    for site in (site for site in sites if "pos" in site.step.op.registers):
        for name, ranges in evaluation.moving(site).items():
            touched[name] += ranges
            paths[name] = (*site.path, "op")
    for site in sites:
        shared = {value for _, value in site.step.op if isinstance(value, str)} & touched.keys()
        for name, ranges in (evaluation.still(site, shared) if shared else {}).items():
            touched[name] += ranges
    for name, found in touched.items():
        if (met := _met(found)) is not None:
            lo, hi, one, other = met
            message = f"bytes {lo}..{hi - 1} of '{name}' move with the position of sequence {one}, {other} has them too"
            where = Where(path=json_pointer(paths[name]))
            yield Diagnostic("AMK104", message, where=where, facts=(because("each is at a position of its own"),))


class _Evaluation:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.geometry, self.sequences = schedule, schedule.geometry(), schedule.sequences
        self.tables: dict[str, IntArray] = {n: np.array(t, np.int64) for n, t in schedule.tables.items()}
        self.crossing = {b.name for b in schedule.buffers if b.space == "global" and b.role != "constant"}

    def moving(self, site: Site) -> dict[str, list[Range]]:
        """Ranges of global memory that the step writes at one of the positions and not at another."""
        found: dict[str, list[Range]] = defaultdict(list)
        for worker, agent, loops in self._runs(site):
            each = [self._at(site, worker, agent, loops, pos, "write") for pos in self._positions(worker)]
            for name, lo, hi in {one for part in each for one in part if any(one not in other for other in each)}:
                found[name].append((lo, hi, self.sequences[worker], True))
        return found

    def still(self, site: Site, names: set[str]) -> dict[str, list[Range]]:
        """All that it touches of these buffers at any of the positions."""
        found: dict[str, list[Range]] = defaultdict(list)
        for worker, agent, loops in self._runs(site):
            for pos in self._positions(worker) if "pos" in site.step.op.registers else (0,):
                for name, lo, hi in self._at(site, worker, agent, loops, pos, "read", "write"):
                    if name in names:
                        found[name].append((lo, hi, self.sequences[worker], False))
        return found

    def _positions(self, worker: int) -> list[int]:
        """The first, the last, the first of the worker's split and of another."""
        kv, split = self.schedule.kv, int(self.tables["attn.split"][worker])
        other = 0 if split else kv.block * (kv.splits > 1)
        return sorted({p for p in (0, kv.context - 1, split * kv.block, other) if p < kv.context})

    def _runs(self, site: Site) -> Iterator[tuple[int, int, dict[str, int]]]:
        program = self.schedule.programs[int(site.path[1])]
        counts = [loop.count or 1 for loop in site.around if loop.var == "l"]
        for layer in sorted({0, counts[0] - 1} if counts else {0}):
            loops = {"t": 0, "n": 0} | ({"l": layer} if counts else {})
            for worker in range(program.first, program.first + program.count):
                for agent in range(self.geometry.role_size[site.step.op.role]):
                    yield worker, agent, loops

    def _at(
        self, site: Site, worker: int, agent: int, loops: dict[str, int], pos: int, *kinds: str
    ) -> set[tuple[str, int, int]]:
        env = Env(loops=loops, worker=worker, agent=agent, pos=pos, tables=self.tables)
        accesses = site.step.op.accesses(env, self.geometry)
        return {(a.buffer, int(a.lo), int(a.hi)) for a in accesses if a.buffer in self.crossing and a.kind in kinds}


def _met(found: list[Range]) -> tuple[int, int, int, int] | None:
    """(lo, hi, sequence, other) of bytes that move with the first's position and that the other touches."""
    ends: tuple[dict[int, int], dict[int, int]] = {}, {}  # by sequence, where all and where moving ranges end so far
    for lo, hi, sequence, moves in sorted(set(found)):
        for other, end in ends[0 if moves else 1].items():
            if other != sequence and end > lo:
                return lo, min(hi, end), *((sequence, other) if moves else (other, sequence))
        for into in ends[: 1 + moves]:
            into[sequence] = max(into.get(sequence, 0), hi)
    return None
