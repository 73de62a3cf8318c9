"""Tagged words and reads-from, each by its definition on one spelled schedule at one position."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from amk.judges.oracle.order import Needs
from amk.judges.oracle.stretches import Span, Stretches
from amk.judges.oracle.touched import CACHED, UNNAMED, Place, Touched, Toucher, place_of
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


def _shared(needs: dict[int, set[int]], unique: dict[tuple[int, ...], tuple[int, ...]]) -> Needs:
    tuples = {segment: tuple(sorted(wanted)) for segment, wanted in needs.items() if wanted}
    return {segment: unique.setdefault(wanted, wanted) for segment, wanted in tuples.items()}


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


Content = tuple[int, int, int, int]
"""(space, lo, hi, content): bytes before or after a launch."""
Spaces = Collection[int] | None
"""None: all."""


def misread(
    toucher: Toucher, touched: Touched, cut: Stretches, order: list[int], pos: Place, spaces: Spaces = None
) -> str | None:
    """Run the segments in this order; the first read, or final content, that is not what the model intends. cut: with
    the spans of `asked` at this position. spaces: those of `touched`."""
    launch, final = _of(launch_content(toucher, pos), spaces), _of(final_content(toucher, pos), spaces)
    held = _numbered(touched, [content for *_, content in launch + final])
    memory = [NOTHING] * cut.count
    outside = [(*span, number) for span, number in zip(cut.spans, held[len(touched.content) :], strict=True)]
    for first, stop, content in outside[: len(launch)]:
        memory[first:stop] = [content] * (stop - first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    along = np.argsort(place[touched.segment], kind="stable").tolist()
    kept = (touched.write | (touched.content != UNNAMED)).tolist()
    write, begin, end = touched.write.tolist(), cut.first.tolist(), cut.stop.tolist()
    for row in along:
        if not kept[row]:
            continue
        first, stop, content = begin[row], end[row], held[row]
        if write[row]:
            memory[first:stop] = [content] * (stop - first)
        elif memory[first:stop].count(content) != stop - first:
            return f"segment {touched.segment[row]} reads {_bytes(touched, row)} that hold something else"
    for (space, lo, hi, _), (first, stop, content) in zip(final, outside[len(launch) :], strict=True):
        if memory[first:stop].count(content) != stop - first:
            return f"bytes {lo}..{hi - 1} of space {space} end with something else than the model says"
    return None


def _numbered(touched: Touched, more: list[int]) -> list[int]:
    """Equal for what has equal content at an equal shift; of the accesses, then of these contents without a shift."""
    content = np.concatenate((touched.content, np.array(more, np.int64)))
    shift = np.concatenate((touched.shift, np.zeros(len(more), np.int64)))
    _, rank = np.unique(shift, return_inverse=True)
    _, number = np.unique((content + 1) << 32 | rank.reshape(-1), return_inverse=True)
    found: list[int] = number.reshape(-1).tolist()
    return found


def _bytes(touched: Touched, row: int) -> str:
    return f"bytes {touched.lo[row]}..{touched.hi[row] - 1} of space {touched.space[row]}"


def launch_spans(toucher: Toucher, pos: Place, spaces: Spaces = None) -> list[Span]:
    """What a launch finds and what it leaves, in the order of both."""
    held = _of(launch_content(toucher, pos), spaces) + _of(final_content(toucher, pos), spaces)
    return [(space, lo, hi) for space, lo, hi, _ in held]


def _of(contents: Iterator[Content], spaces: Spaces) -> list[Content]:
    return [content for content in contents if spaces is None or content[0] in spaces]


def content_by_space(toucher: Toucher, pos: Place) -> dict[int, list[tuple[bool, Content]]]:
    """What a launch finds (False) and leaves (True) in each space."""
    found: dict[int, list[tuple[bool, Content]]] = {}
    for after, contents in enumerate((launch_content(toucher, pos), final_content(toucher, pos))):
        for content in contents:
            found.setdefault(content[0], []).append((after == 1, content))
    return found


def _caches(toucher: Toucher, pos: Place, more: int = 0) -> Iterator[Content]:
    """The cache rows of positions below that of each sequence, and so many more."""
    schedule = toucher.spelled.schedule
    row = schedule.model.head_dim * ITEM_BYTES[schedule.kv.dtype]
    for family in sorted(CACHED):
        for layer in range(schedule.model.layers):
            for head in range(schedule.caches):
                start = (layer * schedule.caches + head) * schedule.kv.context * row
                upto = place_of(pos, head // schedule.model.kv_heads) + more
                if upto <= 0:
                    continue
                yield toucher.number[f"{family}_cache"], start, start + upto * row, toucher.code(family, layer, -1)


def _state(toucher: Toucher, index: int) -> Content:
    return toucher.number["state"], 0, toucher.by_name["state"].bytes, toucher.code("state", index, -1)


def launch_content(toucher: Toucher, pos: Place) -> Iterator[Content]:
    yield _state(toucher, 0)
    yield from _caches(toucher, pos)


def final_content(toucher: Toucher, pos: Place) -> Iterator[Content]:
    schedule, tokens = toucher.spelled.schedule, toucher.spelled.tokens
    one = 4 * schedule.vectors
    yield _state(toucher, 1)
    part = schedule.model.slice
    for n in range(tokens if part is None else 0):
        yield toucher.number["output"], one * n, one * (n + 1), toucher.code("output", 0, n)
    if part is not None and not part.head:
        behind_all = toucher.code("h", len(schedule.model.graph.additions) * schedule.model.layers, tokens - 1)
        yield toucher.number["hidden_out"], 0, toucher.by_name["hidden_out"].bytes, behind_all
    elif not schedule.headless:
        yield toucher.number["logits"], 0, schedule.model.vocab * one, toucher.code("logits", 0, tokens - 1)
    yield from _caches(toucher, pos, toucher.moved[-1] + schedule.rows)
