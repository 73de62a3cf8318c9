"""Memory of the numpy machine: global buffers once, shared ones per worker, poison in what nobody has written.

Numerics: `exact` keeps every float as float32, so that only the constants carry the rounding of their declared type;
`device` rounds what is written to narrower buffers, as the kernel does. fp8 is a choice of the plan, not of
the arithmetic: what is written to such a buffer is rounded either way.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from amk.interpreter.fault import Fault, OutOfBounds, PoisonRead
from amk.interpreter.tagged import TaggedWords
from amk.models.matrices import MatrixName
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import F32, from_bf16_bits, round_bf16
from amk.weights.block_point import round_digits, round_halves
from amk.weights.e4m3 import round_e4m3

Numerics = Literal["exact", "device"]
Array = NDArray[Any]

DEVICE_ROUNDING: dict[str, Callable[..., F32]] = {
    "bf16": round_bf16, "digits": round_digits, "halves": round_halves,
}  # fmt: skip
"""What a write to a buffer of that type keeps; the last two are written in whole blocks, and
also take how many of them share a scale."""

POISON_BITS = np.uint32(0x7FE5DEAD)
POISON_FLOAT = np.uint32(0x7FE5DEAD).reshape(1).view(np.float32)[0]
"""A quiet NaN with a payload of its own: a computed NaN is not mistaken for unwritten memory."""
POISON_INT = np.int32(-0x5A5A5A5A)


def poisoned(buffer: Buffer) -> Array:
    """A fresh array [elements] for `buffer`, float32 or int32; constants start as zeros."""
    floats = buffer.dtype not in ("u32", "i32")
    if buffer.role == "constant":
        return np.zeros(buffer.elements, np.float32 if floats else np.int32)
    return np.full(buffer.elements, POISON_FLOAT if floats else POISON_INT, np.float32 if floats else np.int32)


def overlaps(buffers: list[Buffer]) -> dict[str, list[tuple[Buffer, int]]]:
    """For every shared buffer, the others that share bytes with it and the distance (its offset - the other's)."""
    out: dict[str, list[tuple[Buffer, int]]] = {}
    for a, b in permutations([b for b in buffers if b.offset is not None], 2):
        assert a.offset is not None and b.offset is not None
        if max(a.offset, b.offset) < min(a.offset + a.bytes, b.offset + b.bytes):
            out.setdefault(a.name, []).append((b, a.offset - b.offset))
    return out


class Storage:
    """All memory of a machine. Buffers in `external` (packed weights, rings, barriers) live elsewhere."""

    def __init__(self, schedule: Schedule, numerics: Numerics, external: frozenset[str]) -> None:
        own = [b for b in schedule.buffers if b.name not in external]
        self.buffers = {b.name: b for b in schedule.buffers}
        self.sizes = {b.name: (b.bytes, b.item_bytes) for b in schedule.buffers}
        self.globals = {b.name: poisoned(b) for b in own if b.space == "global"}
        self._shared = [b for b in own if b.space == "shared"]
        self.shared: list[dict[str, Array]] = [
            {b.name: poisoned(b) for b in self._shared} for _ in range(schedule.launch.workers)
        ]
        kept = {"fp8": round_e4m3} | (DEVICE_ROUNDING if numerics == "device" else {})
        self.rounded = {b.name: kept[b.dtype] for b in own if b.dtype in kept and b.role != "constant"}
        self.constant = {b.name for b in own if b.role == "constant"}
        self.aliases = overlaps([b for b in schedule.buffers if b.space == "shared"])
        self.tagged: dict[str, TaggedWords[Any]] = {b.name: TaggedWords(b) for b in own if b.tagged}
        self.woken: list[Any] = []
        self.on_overwrite: dict[tuple[int, str], Callable[[int, int], None]] = {}

    def forget_scratch(self) -> None:
        """A new launch finds nothing in scratch memory."""
        for name, array in self.globals.items():
            if self.buffers[name].role == "scratch":
                array[:] = POISON_FLOAT if array.dtype == np.float32 else POISON_INT
        for arrays in self.shared:
            for array in arrays.values():
                array[:] = POISON_FLOAT if array.dtype == np.float32 else POISON_INT

    def set(self, buffer: str, data: Array) -> None:
        """The host writes a whole global buffer; bf16 may come as its bits. ValueError if the size differs."""
        flat = data.reshape(-1)
        values = from_bf16_bits(flat) if flat.dtype == np.uint16 else flat
        target = self.globals[buffer]
        if values.size != target.size:
            raise ValueError(f"{buffer} holds {target.size} elements, got {values.size}")
        target[:] = values

    def poison_shared(self, worker: int, buffer: Buffer, lo: int, hi: int) -> None:
        """Bytes [lo, hi) of `buffer`, clipped to it, were overwritten through another name."""
        size, item = self.sizes[buffer.name]
        lo, hi = max(lo, 0), min(hi, size)
        if lo >= hi:
            return
        if (worker, buffer.name) in self.on_overwrite:
            self.on_overwrite[worker, buffer.name](lo, hi)
        if (array := self.shared[worker].get(buffer.name)) is not None:
            poison = POISON_FLOAT if array.dtype == np.float32 else POISON_INT
            array[lo // item : -(-hi // item)] = poison

    def overwritten(self, worker: int, buffer: str, lo: int, hi: int) -> None:
        """Bytes [lo, hi) of `buffer` were written: a buffer of its dtype that has them has the same elements, whatever
        else stands there is gone."""
        for other, distance in self.aliases.get(buffer, ()):
            self.poison_shared(worker, other, lo + distance, hi + distance)
            size, item = self.sizes[other.name]
            if other.dtype == self.buffers[buffer].dtype and distance % item == 0:
                self._copy(worker, buffer, other, max(lo, -distance), min(hi, size - distance), distance)

    def _copy(self, worker: int, buffer: str, other: Buffer, lo: int, hi: int, distance: int) -> None:
        """Bytes [lo, hi) of a buffer to where another one of its dtype has them."""
        own, item = self.shared[worker], self.sizes[other.name][1]
        if lo < hi and other.name in own and buffer in own:
            at = (lo + distance) // item
            own[other.name][at : at + (hi - lo) // item] = own[buffer][lo // item : hi // item]


class View:
    """Memory as one agent sees it, and its registers; what op references are given.

    tags: what the current step writes to, and expects in, each tagged buffer.
    """

    def __init__(self, storage: Storage, worker: int) -> None:
        self.regs: dict[str, int] = {}
        self.tags: dict[str, int] = {}
        self._storage = storage
        self._worker = worker
        self._arrays = storage.globals | storage.shared[worker]
        self._constant = storage.constant
        self._rounded = storage.rounded
        self._aliases = storage.aliases
        self._tagged = storage.tagged

    def read(self, buffer: str, lo: int, hi: int) -> F32:
        data = self._slice(buffer, lo, hi)
        if buffer in self._tagged:
            self._check_tags(buffer, lo, hi)
        if buffer not in self._constant and np.count_nonzero(data.view(np.uint32) == POISON_BITS):
            at = lo + int(np.argmax(data.view(np.uint32) == POISON_BITS))
            raise PoisonRead(f"reads {buffer}[{lo}:{hi}], element {at} was never written")
        return data

    def read_int(self, buffer: str, lo: int, hi: int) -> NDArray[np.int64]:
        data = self._slice(buffer, lo, hi)
        if buffer in self._tagged:
            self._check_tags(buffer, lo, hi)
        if buffer not in self._constant and np.count_nonzero(data == POISON_INT):
            at = lo + int(np.argmax(data == POISON_INT))
            raise PoisonRead(f"reads {buffer}[{lo}:{hi}], element {at} was never written")
        return data.astype(np.int64)

    def write(self, buffer: str, lo: int, data: Any, run: int = 1) -> None:
        if buffer in self._constant:
            raise Fault(f"writes {buffer}, a launch constant")
        values = np.asarray(data)
        target = self._slice(buffer, lo, lo + values.size)
        if (rounded := self._rounded.get(buffer)) is not None:
            values = rounded(values) if run == 1 else rounded(values, run)
        target[:] = values
        if buffer in self._tagged:
            self._storage.woken += self._tagged[buffer].write(lo, lo + values.size, self.tags[buffer])
        if buffer in self._aliases:
            item = self._storage.sizes[buffer][1]
            self._storage.overwritten(self._worker, buffer, lo * item, (lo + values.size) * item)

    def tile(self, stream: str, name: MatrixName, layer: int, group: int, k_chunk: int) -> F32:
        """Replaced by views of agents that drain a stream."""
        raise OutOfBounds(f"reads weights of {name} through {stream}, which this agent does not drain")

    def _check_tags(self, buffer: str, lo: int, hi: int) -> None:
        if not self._tagged[buffer].holds(lo, hi, self.tags[buffer]):
            raise Fault(f"reads {buffer}[{lo}:{hi}], which it did not declare and which carries other tags")

    def _slice(self, buffer: str, lo: int, hi: int) -> Array:
        array = self._arrays[buffer]
        if lo < 0 or hi > array.size:
            raise OutOfBounds(f"touches {buffer}[{lo}:{hi}] of {array.size} elements")
        return array[lo:hi]
