"""Sequences of a live batch, each at a position of its own: nothing that moves with one position is another's business.

Property: what holds at every common position holds at every combination of positions. Why: an op's accesses depend on
one position, that of the sequence whose head its worker serves; waits and signals depend on none; so the accesses at
positions (p_0, .., p_n) are those of each sequence's workers at their own. More reads than another position has are
harmless: all are checked, and only those order anything that every position has. A write that some positions lack could
be missing where another sequence's workers need it. This check decides that none do: then a combination is a product,
and each sequence's part of it is one that a common position has too.

    moving      bytes that a warp of sequence s writes at one of four positions and not at another: the first, the
                last, one of its split and one of another split, between which all others lie (`position_abstraction`)
    apart       no op of another sequence's worker touches them, at whichever of its positions

What a sequence that joins reads is what it wrote: it begins at position 0, at position p it reads the cache rows of
0..p of its heads, and these are written by its own steps at those positions. Positions of a launch stay in the context:
whoever launches sees to that, as for one position.

Algorithm: the footprints of each step that moves at those positions, of all workers, in the first and the last layer;
touching ranges of a sequence as one, and those that move against those of the others, sorted. Code: AMK104.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.ops import Op
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.footprint import Footprints
from amk.validator.program.system import I64, WRITE
from amk.validator.program.trace import Item, Path, Site, all_sites

PLACES = 4
"""Positions that are looked at."""


def check_sequences(schedule: Schedule) -> Iterator[Diagnostic]:
    """All findings, of a live batch."""
    touched: dict[int, list[I64]] = defaultdict(list)
    paths: dict[int, Path] = {}
    evaluation = _Evaluation(schedule)
    sites = [site for site in all_sites(schedule) if type(site.step.op).accesses is not Op.accesses]
    for site in (site for site in sites if "pos" in site.step.op.registers):
        for number, ranges in evaluation.moving(site):
            touched[number].append(ranges)
            paths[number] = (*site.path, "op")
    names = {schedule.buffers[number].name: number for number in touched}
    for site in sites:
        shared = {value for _, value in site.step.op if isinstance(value, str)} & names.keys()
        for number, ranges in evaluation.at_rest(site, {names[name] for name in shared}) if shared else ():
            touched[number].append(ranges)
    for number, found in touched.items():
        if (met := _met(np.concatenate(found))) is not None:
            lo, hi, one, other = met
            name = schedule.buffers[number].name
            message = f"bytes {lo}..{hi - 1} of '{name}' move with the position of sequence {one}, {other} has them too"
            yield finding("AMK104", message, paths[number], "each is at a position of its own")


class _Evaluation:
    """Ranges are rows (lo, hi, sequence, whether they move)."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.footprints = schedule, Footprints(schedule)
        self.sequences = np.array(schedule.sequences, np.int64)
        self.known: dict[Path, I64] = {}
        self.crossing = np.array([b.space == "global" and b.role != "constant" for b in schedule.buffers])

    def moving(self, site: Site) -> Iterator[tuple[int, I64]]:
        """By buffer what the step writes at one of the positions and not at another."""
        rows = self._touches(site, PLACES)
        self.known[site.path] = rows
        rows = rows[rows[:, 4] == WRITE]
        for number in np.unique(rows[:, 3]).tolist():
            mine = rows[rows[:, 3] == number]
            # bytes of each warp, one behind the other
            runs, run = np.unique(mine[:, :3], axis=0, return_inverse=True)
            lowest, span = int(mine[:, 5].min()), int(mine[:, 6].max() - mine[:, 5].min()) + 1
            base = run.reshape(-1) * span - lowest
            cuts = np.unique(base[:, None] + mine[:, 5:7])
            first, last = (np.searchsorted(cuts, base + mine[:, column]) for column in (5, 6))
            seen = np.zeros(len(cuts), np.int64)
            for place in range(PLACES):
                here = mine[:, 7] == place
                ends = np.bincount(first[here], minlength=len(cuts)) - np.bincount(last[here], minlength=len(cuts))
                seen += np.cumsum(ends) > 0
            at = np.flatnonzero((seen > 0) & (seen < PLACES))
            if len(at):
                of, lo = np.divmod(cuts[at], span)
                size, sequence = cuts[at + 1] - cuts[at], self.sequences[runs[of, 0]]
                yield number, np.column_stack((lo + lowest, lo + lowest + size, sequence, np.ones_like(lo)))

    def at_rest(self, site: Site, numbers: set[int]) -> Iterator[tuple[int, I64]]:
        """All that it touches of these buffers at any of the positions."""
        rows = self.known.pop(site.path) if site.path in self.known else self._touches(site, 1)
        for number in numbers:
            mine = rows[rows[:, 3] == number]
            yield number, np.column_stack((mine[:, 5:7], self.sequences[mine[:, 0]], np.zeros(len(mine), np.int64)))

    def _touches(self, site: Site, places: int) -> I64:
        """(worker, agent, layer, buffer, kind, lo, hi, place) of what crosses workers."""
        program = self.schedule.programs[int(site.path[1])]
        layers = sorted({0, (site.layers or 1) - 1})
        inside = site.layers is not None
        items = [Item(site, 0, {"t": 0, "n": 0} | ({"l": layer} if inside else {})) for layer in layers]
        workers = np.arange(program.first, program.first + program.count)
        found = []
        for place, pos in enumerate(self._positions(workers)[:places]):
            seen = self.footprints.of(items, workers, np.tile(pos, (len(items), 1)))
            kept = (seen.rows[:, 0] >= 0) & self.crossing[seen.rows[:, 0]]
            columns = seen.worker, seen.agent, seen.item, *seen.rows[:, :4].T, np.full(len(kept), place)
            found.append(np.column_stack(columns)[kept])
        return np.concatenate(found)

    def _positions(self, workers: I64) -> list[I64]:
        """The first, the last, the first of the worker's split and of another."""
        kv, split = self.schedule.kv, self.footprints.tables["attn.split"][workers]
        own, other = split * kv.block, np.where(split > 0, 0, kv.block * (kv.splits > 1))
        ends = np.zeros_like(split), np.full_like(split, kv.context - 1)
        return [*ends, *(np.where(pos < kv.context, pos, 0) for pos in (own, other))]


def _met(ranges: I64) -> tuple[int, int, int, int] | None:
    """(lo, hi, sequence, other) of bytes that move with the first's position and that the other touches."""
    ends: tuple[dict[int, int], dict[int, int]] = {}, {}  # by sequence, where all and where moving ranges end so far
    for lo, hi, sequence, moves in _joined(ranges).tolist():
        for other, end in ends[0 if moves else 1].items():
            if other != sequence and end > lo:
                return lo, min(hi, end), *((sequence, other) if moves else (other, sequence))
        for into in ends[: 1 + moves]:
            into[sequence] = max(into.get(sequence, 0), hi)
    return None


def _joined(spans: I64) -> I64:
    """Touching ranges of a sequence as one, in order."""
    rows = spans[np.lexsort((spans[:, 0], spans[:, 2], spans[:, 3]))]
    which = np.cumsum((np.diff(rows[:, 2:], axis=0, prepend=rows[:1, 2:]) != 0).any(axis=1))
    span = int(rows[:, 1].max(initial=0)) + 1
    reach = np.maximum.accumulate(which * span + rows[:, 1])
    starts = np.flatnonzero(np.append(True, (which * span + rows[:, 0])[1:] > reach[:-1])[: len(rows)])
    ranges = rows[starts]
    if len(starts):
        ranges[:, 1] = np.maximum.reduceat(rows[:, 1], starts)
    return ranges[np.lexsort((ranges[:, 3], ranges[:, 2], ranges[:, 1], ranges[:, 0]))]
