"""Where each weight chunk stands in the packed buffer.

Every (worker, agent) owns one contiguous run of chunks: its gemv steps of a token in program order, each with the
agent's share of the worker's group-major chunk sequence. Streaming is then one pointer that only advances, and wraps
to its start at the end of a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from amk.schedule_ir.expr import Env
from amk.schedule_ir.matrices import MatrixName, matrix
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Node, Program, Schedule, Step


@dataclass(frozen=True)
class StreamLayout:
    """drains: the stream's gemv steps of one token. counts[matrix]: chunks per step, int64 [workers, agents].

    base: first chunk of each (worker, agent) in the packed buffer; totals: chunks per token.
    """

    drains: tuple[tuple[MatrixName, int], ...]
    counts: dict[MatrixName, NDArray[np.int64]]
    base: NDArray[np.int64]
    totals: NDArray[np.int64]


def drains(program: Program, stream: str) -> list[tuple[MatrixName, int]]:
    """(matrix, layer) of each gemv step of one token on `stream`, in program order."""
    return [
        (op.matrix, Env(loops=loops, worker=0).eval_int(op.layer))
        for op, loops in _gemvs(program.body, {"t": 0})
        if op.stream == stream
    ]


def _gemvs(body: tuple[Node, ...], loops: dict[str, int]) -> Iterator[tuple[GemvOp, dict[str, int]]]:
    for node in body:
        if isinstance(node, Step):
            if isinstance(node.op, GemvOp):
                yield node.op, loops
        else:
            for i in range(node.count or 1):
                yield from _gemvs(node.body, loops | {node.var: i})


def stream_layout(schedule: Schedule, stream: Stream) -> StreamLayout:
    """The packed order of `stream`; all programs must drain the same sequence (ValueError otherwise)."""
    sequences = {tuple(drains(p, stream.name)) for p in schedule.programs}
    if len(sequences) != 1:
        raise ValueError(f"programs drain stream {stream.name} in different orders")
    (sequence,) = sequences
    agents = next(r.count for r in schedule.roles if r.name == stream.role)
    counts = {}
    for name in {m for m, _ in sequence}:
        key = "hidden" if name in ("o", "down") else name
        k_chunks = matrix(schedule.model, name).k_chunks(stream.chunk(name).columns)
        chunks = np.array(schedule.tables[f"{key}.count"]) * k_chunks
        bounds = [chunks * a // agents for a in range(agents + 1)]
        counts[name] = np.stack([b - a for a, b in pairwise(bounds)], axis=1)
    totals = np.asarray(np.sum([counts[m] for m, _ in sequence], axis=0, dtype=np.int64))
    flat = np.concatenate([[0], np.cumsum(totals.reshape(-1))[:-1]])
    return StreamLayout(sequence, counts, flat.reshape(totals.shape), totals)
