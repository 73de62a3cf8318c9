"""An agent of the numpy machine: one warp's program counter, registers and drains in progress."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from amk.interpreter.fault import OutOfBounds
from amk.interpreter.memory import Storage, View
from amk.interpreter.program import Entry
from amk.interpreter.rings import Ring
from amk.models.matrices import MatrixName
from amk.schedule_ir.expr import Env, IntArray
from amk.schedule_ir.layout import DrainKey
from amk.schedule_ir.ops.begin import pos_register
from amk.weights.bfloat import F32, Bits
from amk.weights.chunks import unpack_chunks


class Drain:
    """A gemv in progress: chunks [lo, hi) of the worker's group-major sequence, of which `chunks` are drained.

    part: of all parts of all shares of the columns.
    """

    def __init__(self, ring: Ring, key: DrainKey, lo: int, hi: int, k_chunks: int, first: int, part: int) -> None:
        self.ring, self.key = ring, key
        self.matrix, self.layer, _ = key
        self.part = part
        self.lo, self.hi, self.k_chunks = lo, hi, k_chunks
        self.first_group = first
        self.chunks: list[Bits] = []
        self.tiles: F32 | None = None

    def take(self) -> bool:
        """Drain the next chunk, which has arrived; False when it was the last."""
        self.chunks.append(self.ring.drain(self.key, len(self.chunks)))
        return self.remaining > 0

    @property
    def remaining(self) -> int:
        return self.hi - self.lo - len(self.chunks)

    def tile(self, name: MatrixName, layer: int, group: int, k_chunk: int) -> F32:
        """f32 [8, columns] of a drained chunk; a fault for any other."""
        stream, own = self.ring.stream, group - self.first_group
        index = (own // stream.row_groups - self.part) * self.k_chunks + k_chunk - self.lo
        if (name, layer) != (self.matrix, self.layer) or not 0 <= index < len(self.chunks):
            raise OutOfBounds(f"reads a tile of {name} {layer} that it has not drained")
        if self.tiles is None:
            pieces = np.stack(self.chunks).reshape(-1, stream.piece_bytes // 2)
            self.tiles = unpack_chunks(pieces, stream.chunk(self.matrix, self.layer))
        tile: F32 = self.tiles[index * stream.row_groups + own % stream.row_groups]
        return tile


class Agent(View):
    """Warp `warp` of worker `worker` during one launch, and its view of memory.

    waits_held: waits of the current step that are known to hold. arrived: it stands in the current step's barrier.
    """

    def __init__(self, storage: Storage, worker: int, warp: int, program: str, entries: list[Entry]) -> None:
        super().__init__(storage, worker)
        self.is_copy = False
        self.worker, self.warp, self.program = worker, warp, program
        self.entries = entries
        self.position = self.sequence = 0
        self.pc = 0
        self.waits_held = 0
        self.arrived = False
        self.rounds: dict[int, int] = {}
        self.drain: Drain | None = None

    @property
    def entry(self) -> Entry:
        return self.entries[self.pc]

    @property
    def finished(self) -> bool:
        return self.pc == len(self.entries)

    def env(self, tables: Mapping[str, IntArray]) -> Env:
        """Where the agent stands; the position is the register of the worker's sequence once `begin` has loaded it."""
        entry = self.entries[self.pc]
        pos = self.regs.get(pos_register(self.sequence), self.position)
        return Env(loops=entry.loops, worker=self.worker, agent=entry.agent, pos=pos, tables=tables)

    def tile(self, stream: str, name: MatrixName, layer: int, group: int, k_chunk: int) -> F32:
        if self.drain is None or self.drain.ring.stream.name != stream:
            raise OutOfBounds(f"reads weights of {name} through {stream}, which it does not drain")
        return self.drain.tile(name, layer, group, k_chunk)
