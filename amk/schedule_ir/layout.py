"""Where each weight chunk stands in the packed buffer.

Every (worker, agent) owns one contiguous run of chunks: its gemv steps of a token in program order, each with the
agent's share of the worker's group-major chunk sequence. Streaming is then one pointer that only advances, and wraps
to its start at the end of a token.

A schedule without output head has the packed order of one with it: lm_head lies behind what a token reads, in as many
parts as QKV, which multiplies a norm like it. So both can read the same packed weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from amk.models.matrices import K_SPLIT, MatrixName, matrix, share_table
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Node, Program, Schedule, Step, steps_of

DrainKey = tuple[MatrixName, int, int]


@dataclass(frozen=True)
class StreamLayout:
    """drains: the stream's gemv steps of one token: matrix, layer and part of the columns. counts[matrix, layer]:
    chunks per step, int64 [workers, agents]. splits[matrix]: workers that the columns are divided among. parts[matrix]:
    steps that a worker's share of them is divided into.

    base: first chunk of each (worker, agent) in the packed buffer; totals: chunks per token. packed: all that lies in
    the buffer, in order: the drains, and what no step multiplies; places: chunks of each (worker, agent) there.
    """

    drains: tuple[DrainKey, ...]
    packed: tuple[DrainKey, ...]
    counts: dict[tuple[MatrixName, int], NDArray[np.int64]]
    base: NDArray[np.int64]
    totals: NDArray[np.int64]
    places: NDArray[np.int64]
    parts: dict[MatrixName, int]
    splits: dict[MatrixName, int]

    def shares(self, name: MatrixName) -> str:
        """The tables of the matrix's row groups."""
        return share_table(name, self.splits[name])

    def across(self, schedule: Schedule, stream: Stream, name: MatrixName, layer: int) -> int:
        """Chunks of a part of a worker's share of the columns, of one row of chunks."""
        whole = matrix(schedule.model, name).k_chunks(stream.chunk(name, layer).columns)
        return whole // (self.parts[name] * self.splits[name])


def drains(program: Program, stream: str) -> list[DrainKey]:
    """(matrix, layer, part) of each gemv step of one token on `stream`, in program order."""
    return [
        (op.matrix, Env(loops=loops, worker=0).eval_int(op.layer), op.k_part)
        for op, loops in _gemvs(program.body, {"t": 0})
        if op.stream == stream
    ]


def _gemvs(body: tuple[Node, ...], loops: dict[str, int]) -> Iterator[tuple[GemvOp, dict[str, int]]]:
    for node in body:
        if isinstance(node, Step):
            if isinstance(node.op, GemvOp):
                yield node.op, loops
        else:
            kept = tuple(n for n in node.body if not isinstance(n, Step) or isinstance(n.op, GemvOp))
            for i in range(node.count or 1):
                yield from _gemvs(kept, loops | {node.var: i})


def k_splits(schedule: Schedule) -> dict[MatrixName, int]:
    """The matrices whose columns are divided, and among how many workers: the most that a step says."""
    found: dict[MatrixName, int] = {}
    for program in schedule.programs:
        for step in steps_of(program.body):
            if isinstance(step.op, GemvOp) and step.op.k_splits > 1:
                found[step.op.matrix] = max(found.get(step.op.matrix, 1), step.op.k_splits)
    return found


def drain_order(schedule: Schedule, stream: Stream) -> tuple[DrainKey, ...]:
    """The sequence of drains of a token that the packed order follows: the longest of any program.

    A program may leave out the drains of matrices of which none of its workers owns rows; ValueError if it drains the
    others in another order.
    """
    sequences, splits = [(program, drains(program, stream.name)) for program in schedule.programs], k_splits(schedule)
    order = max((sequence for _, sequence in sequences), key=len)
    named = {name for name, *_ in order}
    for program, sequence in sequences:
        mine = slice(program.first, program.first + program.count)
        counts = {name: schedule.tables[f"{share_table(name, splits.get(name, 1))}.count"] for name in named}
        owned = {name for name in named if any(counts[name][mine])}
        if [d for d in sequence if d[0] in owned] != [d for d in order if d[0] in owned] or set(sequence) - set(order):
            raise ValueError(f"program {program.name} drains stream {stream.name} in another order")
    return tuple(order)


def stream_layout(schedule: Schedule, stream: Stream) -> StreamLayout:
    """The packed order of `stream`; ValueError if the programs do not agree on one."""
    sequence = drain_order(schedule, stream)
    agents = next(r.count for r in schedule.roles if r.name == stream.role)
    counts: dict[tuple[MatrixName, int], NDArray[np.int64]] = {}
    ops = [step.op for program in schedule.programs for step in steps_of(program.body)]
    parts: dict[MatrixName, int] = {name: 1 for name, *_ in sequence}
    for op in ops:
        if isinstance(op, GemvOp) and op.matrix in parts:
            parts[op.matrix] = max(parts[op.matrix], op.k_parts)
    unread: tuple[DrainKey, ...] = ()
    if schedule.headless and "qkv" in parts:
        parts["lm_head"] = parts["qkv"]
        unread = tuple(("lm_head", 0, part) for part in range(parts["qkv"]))
    splits = dict.fromkeys(parts, 1) | k_splits(schedule)
    alike: dict[tuple[MatrixName, int], NDArray[np.int64]] = {}
    times: Counter[tuple[MatrixName, int]] = Counter()
    read: Counter[tuple[MatrixName, int]] = Counter()
    for number, (name, layer, _) in enumerate((*sequence, *unread)):
        k_chunks = matrix(schedule.model, name).k_chunks(stream.chunk(name, layer).columns) // (
            parts[name] * splits[name]
        )
        if (name, k_chunks) not in alike:
            chunks = (
                np.array(schedule.tables[f"{share_table(name, splits[name])}.count"]) // stream.row_groups * k_chunks
            )
            bounds = [chunks * a // agents for a in range(agents + 1)]
            alike[name, k_chunks] = np.stack([b - a for a, b in pairwise(bounds)], axis=1)
        counts[name, layer] = alike[name, k_chunks]
        times[name, k_chunks] += 1
        read[name, k_chunks] += number < len(sequence)
    totals, places = (
        np.asarray(np.sum([each[kind] * chunks for kind, chunks in alike.items()], axis=0, dtype=np.int64))
        for each in (read, times)
    )
    flat = np.concatenate([[0], np.cumsum(places.reshape(-1))[:-1]])
    return StreamLayout(
        sequence, (*sequence, *unread), counts, flat.reshape(totals.shape), totals, places, parts, splits
    )


def chunk_places(layout: StreamLayout) -> Iterator[tuple[DrainKey, NDArray[np.int64]]]:
    """Packed index of each of its chunks, worker by worker and row by row of them, for all that is packed."""
    done = np.zeros_like(layout.totals)
    for key in layout.packed:
        counts = layout.counts[key[:2]]
        starts = (layout.base + done).reshape(-1)
        sizes = counts.reshape(-1)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        done += counts
        yield key, np.repeat(starts, sizes) + within


def piece_places(schedule: Schedule, stream: Stream) -> Iterator[tuple[DrainKey, NDArray[np.int64]]]:
    """Packed index of each piece of its chunks, worker by worker and group-major, for all that is packed."""
    layout, each = stream_layout(schedule, stream), stream.row_groups
    for key, places in chunk_places(layout):
        across = layout.across(schedule, stream, *key[:2])
        pieces = places.reshape(-1, 1, across) * each + np.arange(each)[:, None]
        yield key, pieces.reshape(-1)


def owners(schedule: Schedule, layout: StreamLayout, name: MatrixName) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row groups of the matrix, worker by worker, and which of the shares of their columns the worker has."""
    first, count = (schedule.tables[f"{layout.shares(name)}.{end}"] for end in ("first", "count"))
    groups = np.concatenate([np.arange(f, f + n) for f, n in zip(first, count, strict=True)])
    index = schedule.tables[f"{K_SPLIT}.index"] if layout.splits[name] > 1 else (0,) * len(count)
    return groups, np.repeat(np.array(index, np.int64), count)


def matrix_places(schedule: Schedule, stream: Stream) -> dict[tuple[MatrixName, int], NDArray[np.int32]]:
    """Packed index of every piece of each (matrix, layer), [row groups * chunks of a row], group-major."""
    layout = stream_layout(schedule, stream)
    found: dict[tuple[MatrixName, int], NDArray[np.int32]] = {}
    for (name, layer, part), places in piece_places(schedule, stream):
        groups, index = owners(schedule, layout, name)
        each = layout.across(schedule, stream, name, layer)
        shape = (matrix(schedule.model, name).groups, layout.splits[name], layout.parts[name], each)
        whole = found.setdefault((name, layer), np.full(int(np.prod(shape)), -1, np.int32))
        whole.reshape(shape)[groups, index, part] = places.reshape(len(groups), each)
    return found
