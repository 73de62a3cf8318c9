"""May launches of several schedules take turns on one text: what they hand to each other, and what they share.

Property: after `apart(a, b)` found nothing, a launch of `b` goes on where one of `a` stopped, and the other way round,
with the caches and constants of both in the same memory. Each is SAFE by its own verdict; a launch ends before the next
one begins, so whatever one wrote is there for the other, and who owns which position in a launch does not matter.

    (T1) they compute the same function on one device: equal models, formats of each matrix that both have, sequences,
         type of the cache and target
    (T2) what both name is laid out alike: key and value of a position lie at the same place in both caches, and
         constants other than packed weights have one shape and one content; that of the scales that stand apart from
         the codes is a function of the format, all other constants are the model's. What is scratch of one is scratch
         of both
    (T3) the launch state is handed over by its words: token, position and end are the text's; the epoch stays with
         the counters that it counts for, which are each schedule's own, as its scratch memory and its outputs are
    (T4) the device holds what all of them need at once (`crowded`)
Packed weights are shared where `one_packing` holds; elsewhere each schedule needs its own.

Codes: AMK106 (T1), AMK103 (T2), AMK011 (T4). Cost: microseconds; the layout of the weights milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from math import gcd
from typing import Final

import numpy as np
from numpy.typing import NDArray

from amk.models.matrices import MATRICES, MatrixName, matrix, scale_buffer
from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.layout import owners, stream_layout
from amk.schedule_ir.memory import Buffer, Stream
from amk.schedule_ir.schedule import Schedule
from amk.weights.weight_format import Chunk

HANDED_OVER: Final = ("token", "pos", "done")
"""Words of the launch state that belong to a text; see `handed_over`."""
OWN: Final = frozenset({"state", "output", "logits"})
"""Buffers that the host fills or reads for each schedule by itself."""


def handed_over(schedule: Schedule) -> tuple[str, ...]:
    """The words of its launch state that belong to the texts: those of further sequences too."""
    return tuple(word for word in schedule.state_words if word.partition(".")[0] in HANDED_OVER)


def apart(one: Schedule, other: Schedule) -> list[Diagnostic]:
    """What keeps them from taking turns; nothing if they may."""
    found = []
    for field, a, b in (
        ("model", one.model, other.model),
        ("batch", one.batch, other.batch),
        ("live", one.live, other.live),
        ("kv.dtype", one.kv.dtype, other.kv.dtype),
        ("target", (one.target.name, one.target.arch), (other.target.name, other.target.arch)),
    ):
        if a != b:
            names = "" if field == "model" and one.model.name == other.model.name else f": {_name(a)} and {_name(b)}"
            message = f"the schedules differ in {field}{names}"
            found.append(finding("AMK106", message, (*field.split("."),), "a text goes on in the same caches"))
    found += islice(_other_formats(one, other), 1)
    theirs = {buffer.name: buffer for buffer in other.buffers}
    packed = {stream.source for schedule in (one, other) for stream in schedule.streams}
    for i, buffer in enumerate(one.buffers):
        twin = theirs.get(buffer.name)
        if twin is None or buffer.role == twin.role == "scratch" or buffer.name in OWN | packed:
            continue
        if _memory(buffer) != _memory(twin):
            memories = (" ".join(map(str, _memory(each))) for each in (buffer, twin))
            message = f"'{buffer.name}' is {' and '.join(memories)}"
            found.append(finding("AMK103", message, ("buffers", i), "it is the same memory for both"))
    return [*found, *_other_scales(one, other)]


def _memory(buffer: Buffer) -> tuple[str, str, list[int], str]:
    """What gives the bytes of memory that two schedules share a meaning."""
    place = f"{'tagged ' if buffer.tagged else ''}in {buffer.space} memory"
    return buffer.role, buffer.dtype, list(buffer.shape), place


def _other_formats(one: Schedule, other: Schedule) -> Iterator[Diagnostic]:
    """Matrices that both have, whose numbers are rounded otherwise."""
    theirs = _formats(other)
    for (name, layer), (stream, formats) in _formats(one).items():
        _, others = theirs.get((name, layer), (0, formats))
        if formats != others:
            message = f"'{name}' of layer {layer} is {' and '.join(sorted(formats))} and {' and '.join(sorted(others))}"
            yield finding("AMK106", message, ("streams", stream), "its numbers are rounded otherwise")


def _formats(schedule: Schedule) -> dict[tuple[MatrixName, int], tuple[int, set[str]]]:
    """(matrix, layer) -> the last stream that it is in, and its formats."""
    found: dict[tuple[MatrixName, int], tuple[int, set[str]]] = {}
    for i, stream in enumerate(schedule.streams):
        for name, layer in dict.fromkeys(key[:2] for key in stream_layout(schedule, stream).packed):
            _, formats = found.get((name, layer), (i, set()))
            found[name, layer] = i, formats | {stream.chunk(name, layer).format}
    return found


def _other_scales(one: Schedule, other: Schedule) -> Iterator[Diagnostic]:
    """Buffers of scales that both name, and that hold those of other codes for one of the two."""
    places, layers = {buffer.name: i for i, buffer in enumerate(one.buffers)}, max(one.model.layers, 1)
    for name in MATRICES:
        held = scale_buffer(name)
        if held not in places or all(buffer.name != held for buffer in other.buffers):
            continue
        both = [(layer, _scales(one, name, layer), _scales(other, name, layer)) for layer in range(layers)]
        for layer, a, b in [entry for entry in both if entry[1] != entry[2]][:1]:
            message = f"layer {layer} of '{held}' is {a} and {b}"
            yield finding("AMK103", message, ("buffers", places[held]), "it is the same memory for both")


def _scales(schedule: Schedule, name: MatrixName, layer: int) -> str:
    """Whose scales its buffer holds for that layer."""
    held = {chunk.format for chunk in (s.chunk(name, layer) for s in schedule.streams) if chunk.apart}
    return f"the scales of {' and '.join(sorted(held))}" if held else "nothing"


def crowded(schedules: Sequence[Schedule]) -> list[Diagnostic]:
    """What keeps all of them from one device's memory. Caches and constants are there once; so are packed weights where
    they are the same bytes; everything else is each schedule's own."""
    once: dict[str, int] = {}
    own = 0
    for n, schedule in enumerate(schedules):
        packed = {stream.source for stream in schedule.streams}
        shared = any(one_packing(schedule, before) for before in schedules[:n])
        for buffer in (b for b in schedule.buffers if b.space == "global"):
            if buffer.name in packed:
                own += 0 if shared else buffer.bytes
            elif buffer.role == "scratch" or buffer.name in OWN:
                own += buffer.bytes
            else:
                once[buffer.name] = buffer.bytes
    needed, target = own + sum(once.values()), min((s.target for s in schedules), key=lambda t: t.hbm_bytes)
    if needed <= target.hbm_bytes:
        return []
    message = f"the buffers of all need {needed:,} bytes, {target.name} has {target.hbm_bytes:,}"
    return [finding("AMK011", message, ("buffers",), "all of them are allocated while launches take turns")]


def one_packing(one: Schedule, other: Schedule) -> bool:
    """Whether the packed weights of one are those of the other, byte for byte.

    Copies need not be of one size: every warp of every worker has the same tiles in the same order. A copy of two tiles
    is two copies of one where nothing but the numbers of the tiles is in it.
    """
    if len(one.streams) != 1 or len(other.streams) != 1 or one.model != other.model:
        return False
    a, b = one.streams[0], other.streams[0]
    sizes = [{buffer.name: buffer.bytes for buffer in schedule.buffers} for schedule in (one, other)]
    if (a.source, sizes[0].get(a.source)) != (b.source, sizes[1].get(b.source)):
        return False
    left, right = _Packed(one, a), _Packed(other, b)
    if left.matrices != right.matrices or left.layout.places.shape != right.layout.places.shape:
        return False
    if not left.whole or not right.whole:
        return False
    known: dict[tuple[MatrixName, Chunk, Chunk], bool] = {}
    for name, layer in left.matrices:
        kinds = a.chunk(name, layer), b.chunk(name, layer)
        if (name, *kinds) not in known:
            tile = _tile(a, b, *kinds)
            same = zip(left.tiles(name, layer, tile), right.tiles(name, layer, tile), strict=True) if tile else ()
            known[name, *kinds] = tile > 0 and all(np.array_equal(x, y) for x, y in same)
        if not known[name, *kinds]:
            return False
    return True


def _tile(one: Stream, other: Stream, a: Chunk, b: Chunk) -> int:
    """Columns of what both kinds of chunks are made of, one behind the other; 0 if there is no such thing."""
    if a == b and one.piece_bytes == other.piece_bytes:
        return a.columns
    whole = all(chunk.bytes == chunk.weights.payload_bytes(chunk.columns) for chunk in (a, b))
    filled = (a.bytes, b.bytes) == (one.piece_bytes, other.piece_bytes)
    return gcd(a.columns, b.columns) if whole and filled and (a.format, a.apart) == (b.format, b.apart) else 0


class _Packed:
    """The packed weights of a schedule. matrices: all that lie there, in the order in which each warp has its share."""

    def __init__(self, schedule: Schedule, stream: Stream) -> None:
        self.schedule, self.stream, self.layout = schedule, stream, stream_layout(schedule, stream)
        self.matrices = [key for key, _ in groupby(key[:2] for key in self.layout.packed)]

    @property
    def whole(self) -> bool:
        """Whether workers own whole chunks, as they do in a SAFE schedule."""
        tables, each = self.schedule.tables, self.stream.row_groups
        return not any(
            count % each for name, _ in self.matrices for count in tables[f"{self.layout.shares(name)}.count"]
        )

    def tiles(self, name: MatrixName, layer: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tiles of so many columns of each warp of each worker, [workers, agents], and the number of each within the
        matrix, in packed order."""
        model, parts = self.schedule.model, self.layout.parts[name]
        chunk = self.stream.chunk(name, layer)
        in_row, together = matrix(model, name).k_chunks(chunk.columns), self.stream.row_groups
        groups, index = owners(self.schedule, self.layout, name)
        across = in_row // (parts * self.layout.splits[name])
        first = groups * in_row + index * parts * across
        pieces = first.reshape(-1, 1, together) + np.arange(across)[:, None]
        chunks = np.concatenate([pieces.reshape(-1, together) + part * across for part in range(parts)])
        counts = self.layout.counts[name, layer]
        owner = np.repeat(np.arange(counts.size), counts.reshape(-1))
        order = np.argsort(np.tile(owner, parts), kind="stable")  # of each warp one part after the other
        each = chunk.columns // columns
        numbers = chunks[order].reshape(-1, 1) * each + np.arange(each)
        return counts * parts * together * each, np.asarray(numbers.reshape(-1), np.int64)


def _name(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(getattr(value, "name", value))
