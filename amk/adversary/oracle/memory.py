"""Tagged words, races and reads-from, each by its definition on one spelled schedule at one position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from amk.adversary.oracle.flatten import Spelled, TooBig
from amk.adversary.oracle.order import Needs, Order
from amk.adversary.oracle.touched import CACHED, UNNAMED, Touched, Toucher
from amk.schedule_ir.expr import IntArray
from amk.schedule_ir.memory import ITEM_BYTES

NOTHING = -2
"""Content of a byte that nobody has written."""


def word_needs(touched: Touched, tagged: set[int], perhaps: set[tuple[int, int]]) -> tuple[Needs, Needs, str | None]:
    """Per reading segment the segments that write its words with its tag: all, and without the (segment, space) that
    are read `perhaps`, which order nothing; why some never come, if so.
    """
    needs: dict[int, set[int]] = {}
    sure: dict[int, set[int]] = {}
    for space in sorted(tagged):
        rows = np.flatnonzero(touched.space == space)
        writes, reads = rows[touched.write[rows]], rows[~touched.write[rows]]
        if (touched.tag[rows] <= 0).any():
            return {}, {}, "a tag is not positive, so zeroed memory already carries it"
        for read in reads.tolist():
            segment = int(touched.segment[read])
            same = writes[(touched.tag[writes] == touched.tag[read]) & _meets(touched, writes, read)]
            if not _covers(touched, same, read):
                return {}, {}, f"segment {segment} waits for words that nobody writes with its tag"
            wanted = set(touched.segment[same].tolist()) - {segment}
            needs.setdefault(segment, set()).update(wanted)
            if (segment, space) not in perhaps:
                sure.setdefault(segment, set()).update(wanted)
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    return _shared(needs, shared), _shared(sure, shared), None


def _shared(needs: dict[int, set[int]], known: dict[tuple[int, ...], tuple[int, ...]]) -> Needs:
    tuples = {segment: tuple(sorted(wanted)) for segment, wanted in needs.items() if wanted}
    return {segment: known.setdefault(wanted, wanted) for segment, wanted in tuples.items()}


def _meets(touched: Touched, rows: IntArray, other: int) -> np.ndarray:
    met: np.ndarray = (touched.lo[rows] < touched.hi[other]) & (touched.lo[other] < touched.hi[rows])
    return met


def _covers(touched: Touched, rows: IntArray, read: int) -> bool:
    reach = int(touched.lo[read])
    for row in rows[np.argsort(touched.lo[rows])].tolist():
        if touched.lo[row] > reach:
            return False
        reach = max(reach, int(touched.hi[row]))
    return reach >= int(touched.hi[read])


@dataclass(frozen=True, eq=False)
class Orders:
    """Of the three kinds of edges (see `flatten`)."""

    block: Order
    word: Order
    fence: Order


@dataclass(frozen=True, eq=False)
class Pairs:
    """Segments of different agents that share a byte, the first of each pair writing, the other too if `both`. space:
    -1 where many pairs were found and equal questions are asked once. tags: sign of the first's tag minus the other's.
    """

    space: IntArray
    write: IntArray
    other: IntArray
    both: np.ndarray
    tagged: np.ndarray
    tags: IntArray


MANY, TOGETHER = 1_000_000, 500_000


def pairs(touched: Touched, agent_of: IntArray, tagged: set[int]) -> Pairs:
    """All pairs; segments in place of accesses."""
    kept = [np.zeros((0, 4), np.int64)]
    for space in np.unique(touched.space).tolist():
        rows = np.flatnonzero(touched.space == space)
        for a, b in _meeting(touched, rows):
            apart = agent_of[touched.segment[a]] != agent_of[touched.segment[b]]
            a, b = a[apart], b[apart]
            tags = np.sign(touched.tag[a] - touched.tag[b]) + 1
            flags = touched.write[b] | (int(space in tagged) << 1) | tags << 2
            kept.append(np.stack((np.full(len(a), space), touched.segment[a], touched.segment[b], flags), axis=1))
    table = np.concatenate(kept)
    if len(table) > MANY:
        key = np.sort(table[:, 1] << 36 | table[:, 2] << 8 | table[:, 3])
        key = key[np.diff(key, prepend=-1) != 0]
        table = np.stack((np.full(len(key), -1), key >> 36, key >> 8 & (1 << 28) - 1, key & 255), axis=1)
    space, write, other, flags = table.T
    return Pairs(space, write, other, flags & 1 == 1, flags & 2 == 2, (flags >> 2) - 1)


def _meeting(touched: Touched, rows: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Every write with every access that shares a byte with it, in parts; rows: the accesses of one space."""
    rows = rows[np.argsort(touched.lo[rows], kind="stable")]
    writes = rows[touched.write[rows]]
    # what ends at or before the write's first byte, and what begins behind its last, cannot meet it
    first = np.searchsorted(np.maximum.accumulate(touched.hi[rows]), touched.lo[writes], side="right")
    last = np.searchsorted(touched.lo[rows], touched.hi[writes], side="left")
    count = np.maximum(last - first, 0)
    ends = np.cumsum(count)
    low = 0
    while low < len(writes):
        done = int(ends[low] - count[low])
        high = max(low + 1, int(np.searchsorted(ends, done + TOGETHER, side="right")))
        part = count[low:high]
        a = np.repeat(writes[low:high], part)
        b = rows[np.arange(len(a)) + np.repeat(first[low:high] - (ends[low:high] - part - done), part)]
        met = (touched.lo[a] < touched.hi[b]) & (touched.lo[b] < touched.hi[a])
        yield a[met], b[met]
        low = high


def race(spelled: Spelled, touched: Touched, tagged: set[int], orders: Orders) -> str | None:
    """The first conflicting pair that some execution does not separate, or whose write may stay unseen."""
    met = pairs(touched, spelled.agent_of, tagged)
    for part in orders.fence.parts(met.write, met.other):
        if (k := _unordered(met, part, orders)) is not None:
            where = f" of space {met.space[k]}" if met.space[k] >= 0 else ""
            return f"segments {met.write[k]} and {met.other[k]} touch a common byte{where} unordered"
    return None


def _unordered(met: Pairs, part: IntArray, orders: Orders) -> int | None:
    """The first of these pairs that is none of what `race` asks for."""
    a, b, both, tagged, tags = (column[part] for column in (met.write, met.other, met.both, met.tagged, met.tags))
    before, after = orders.fence.before(a, b), np.zeros(len(a), bool)
    after[both] = orders.fence.before(b[both], a[both])
    plain = np.flatnonzero(~both & ~tagged & ~before)
    after[plain] = orders.word.before(b[plain], a[plain])
    bad = ~before & ~after & (both | ~tagged)
    bad |= tagged & both & (np.where(before, tags, -tags) >= 0)
    late = np.flatnonzero(tagged & ~both & (tags > 0))
    bad[late] |= ~orders.block.before(b[late], a[late])
    return int(part[np.flatnonzero(bad)[0]]) if bad.any() else None


MAX_BYTES = 2**28
"""Of all buffers that a launch may write; each byte takes 16 here."""

Content = tuple[int, int, int, int]
"""(space, lo, hi, content): bytes before or after a launch."""


class Memory:
    """Byte contents during one execution: of each space as far as something of it is touched or asked for.

    `TooBig` beyond `MAX_BYTES`.
    """

    def __init__(self, toucher: Toucher, touched: Touched, asked: list[Content]) -> None:
        schedule = toucher.spelled.schedule
        sizes = [b.bytes if b.space == "global" and b.role != "constant" else 0 for b in schedule.buffers]
        shared = [b for b in schedule.buffers if b.space == "shared"]
        room = max((b.bytes + (b.offset or 0) for b in shared), default=0)
        sizes += [room] * schedule.launch.workers
        reach = np.zeros(len(sizes), np.int64)
        np.maximum.at(reach, touched.space, touched.hi)
        for space, _, hi, _ in asked:
            reach[space] = max(reach[space], hi)
        sizes = np.minimum(sizes, reach).tolist()
        if sum(sizes) > MAX_BYTES:
            raise TooBig(f"{sum(sizes):,} bytes are too many to follow one by one, at most {MAX_BYTES:,}")
        self.content = [np.full(size, NOTHING, np.int64) for size in sizes]
        self.shift = [np.zeros(size, np.int64) for size in sizes]

    def fill(self, space: int, lo: int, hi: int, content: int, shift: int = 0) -> None:
        self.content[space][lo:hi] = content
        self.shift[space][lo:hi] = shift

    def holds(self, space: int, lo: int, hi: int, content: int, shift: int = 0) -> bool:
        differ = (self.content[space][lo:hi] != content) | (self.shift[space][lo:hi] != shift)
        return not np.count_nonzero(differ)


def misread(toucher: Toucher, touched: Touched, order: list[int], pos: int) -> str | None:
    """Run the segments in this order; the first read, or final content, that is not what the model intends."""
    launch, final = list(_launch_content(toucher, pos)), list(_final_content(toucher, pos))
    memory = Memory(toucher, touched, [*launch, *final])
    for space, lo, hi, content in launch:
        memory.fill(space, lo, hi, content)
    first = np.searchsorted(touched.segment, np.arange(len(toucher.spelled.segments) + 1))
    rows = list(
        zip(
            touched.space.tolist(), touched.write.tolist(), touched.lo.tolist(), touched.hi.tolist(),
            touched.content.tolist(), touched.shift.tolist(), strict=True,
        )
    )  # fmt: skip
    for segment in order:
        for space, write, lo, hi, content, shift in rows[first[segment] : first[segment + 1]]:
            if write:
                memory.fill(space, lo, hi, content, shift)
            elif content != UNNAMED and not memory.holds(space, lo, hi, content, shift):
                return f"segment {segment} reads bytes {lo}..{hi - 1} of space {space} that hold something else"
    for space, lo, hi, content in final:
        if not memory.holds(space, lo, hi, content):
            return f"bytes {lo}..{hi - 1} of space {space} end with something else than the model says"
    return None


def _caches(toucher: Toucher, upto: int) -> Iterator[Content]:
    """The cache rows of positions below `upto`."""
    schedule = toucher.spelled.schedule
    row = schedule.model.head_dim * ITEM_BYTES[schedule.kv.dtype]
    for family in sorted(CACHED) if upto > 0 else ():
        for layer in range(schedule.model.layers):
            for head in range(schedule.caches):
                start = (layer * schedule.caches + head) * schedule.kv.context * row
                yield toucher.number[f"{family}_cache"], start, start + upto * row, toucher.code(family, layer, -1)


def _state(toucher: Toucher, index: int) -> Content:
    return toucher.number["state"], 0, toucher.by_name["state"].bytes, toucher.code("state", index, -1)


def _launch_content(toucher: Toucher, pos: int) -> Iterator[Content]:
    yield _state(toucher, 0)
    yield from _caches(toucher, pos)


def _final_content(toucher: Toucher, pos: int) -> Iterator[Content]:
    schedule, tokens = toucher.spelled.schedule, toucher.spelled.tokens
    one = 4 * schedule.batch
    yield _state(toucher, 1)
    for n in range(tokens):
        yield toucher.number["output"], one * n, one * (n + 1), toucher.code("output", 0, n)
    yield toucher.number["logits"], 0, schedule.model.vocab * one, toucher.code("logits", 0, tokens - 1)
    yield from _caches(toucher, pos + tokens)
