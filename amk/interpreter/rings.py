"""Weight streams with every copy an event: rings, their slots, and the copies in flight.

Issue of chunk j + slots follows the drain of chunk j, at once or later; copies complete in any order. A chunk's
identity is its number in the packed buffer: the consumer computes from the layout which one its next tile must be, the
producer only advances a pointer, so a disagreement between the two is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from amk.interpreter.fault import WrongChunk
from amk.interpreter.memory import Storage
from amk.schedule_ir.layout import DrainKey, StreamLayout
from amk.schedule_ir.memory import Stream
from amk.weights.bfloat import Bits

NOTHING = -1
"""Tag of a slot whose bytes are no chunk."""


class Copy:
    """One bulk copy in flight: chunk `number` of its ring's sequence over the launch."""

    __slots__ = ("is_copy", "number", "ring", "worker")

    def __init__(self, ring: Ring, number: int) -> None:
        self.is_copy = True
        self.ring = ring
        self.number = number
        self.worker = ring.worker


class Ring:
    """The private ring of one agent, which owes a refill for `owed` of the slots that it drained last. `waiter` is the
    agent when it waits for its next chunk."""

    def __init__(self, stream: Stream, layout: StreamLayout, packed: Bits, worker: int, agent: int) -> None:
        self.stream, self.worker, self.agent = stream, worker, agent
        self._packed = packed
        self._base = int(layout.base[worker, agent])
        self._per_token = int(layout.totals[worker, agent])
        self._starts = self._drain_starts(layout)
        slots, self.slot_bytes = stream.slots, stream.chunk_bytes
        self._content = np.zeros((slots, self.slot_bytes // 2), np.uint16)
        self.tags = [NOTHING] * slots
        self._landed = [0] * slots
        self.issued = self.drained = self.debt = self.limit = 0
        self.waiter: Any = None

    def _drain_starts(self, layout: StreamLayout) -> dict[DrainKey, int]:
        """First chunk, in the packed buffer, of each of the agent's drains."""
        starts, at = {}, self._base
        for key in layout.drains:
            starts[key] = at
            at += int(layout.counts[key[:2]][self.worker, self.agent])
        return starts

    def begin(self, tokens: int) -> None:
        """A launch of `tokens` tokens: rings start empty, and nothing is fetched that the launch does not drain."""
        slots = self.stream.slots
        self.tags, self._landed = [NOTHING] * slots, [0] * slots
        self.issued = self.drained = self.debt = 0
        self.limit = self._per_token * tokens
        self.waiter = None

    def issue(self, until: int) -> list[Copy]:
        """Start the copies of chunks up to `until`, as far as slots are free and not held back."""
        until = min(until, self.drained + self.stream.slots - self.debt, self.limit)
        out = [Copy(self, j) for j in range(self.issued, until)]
        self.issued = max(self.issued, until)
        return out

    def hold(self, most: int) -> None:
        """The refill of the slot that was drained last is held back, if at most so many are owed then."""
        self.debt += self.debt < most

    def refill(self, most: int) -> list[Copy]:
        """Start copies that are owed, at most so many."""
        count = min(self.debt, most)
        self.debt -= count
        return self.issue(self.issued + count)

    def land(self, number: int) -> int:
        """Copy `number` completes; returns its slot."""
        slot = number % self.stream.slots
        chunk = self._base + number % self._per_token
        self._content[slot] = self._packed[chunk]
        self.tags[slot] = chunk
        self._landed[slot] += 1
        return slot

    def ready(self) -> bool:
        """The next chunk has arrived."""
        return self._landed[self.drained % self.stream.slots] > self.drained // self.stream.slots

    def drain(self, key: DrainKey, index: int) -> Bits:
        """The bytes of the next chunk, which must be chunk `index` of the agent's share of that drain."""
        slot = self.drained % self.stream.slots
        expected = self._starts[key] + index
        if self.tags[slot] != expected:
            held = "bytes of something else" if self.tags[slot] == NOTHING else f"chunk {self.tags[slot]}"
            raise WrongChunk(f"slot {slot} of ring {self.agent} holds {held}, {key[0]} {key[1]} needs chunk {expected}")
        self.drained += 1
        content: Bits = self._content[slot].copy()
        return content

    def clobber(self, lo: int, hi: int) -> None:
        """Bytes [lo, hi) of the worker's ring buffer were overwritten through another name."""
        first, size = self.agent * self.stream.slots, self.slot_bytes
        for slot in range(self.stream.slots):
            if lo < (first + slot + 1) * size and (first + slot) * size < hi:
                self.tags[slot] = NOTHING


class Rings:
    """All rings of one stream."""

    def __init__(self, stream: Stream, layout: StreamLayout, packed: Bits, storage: Storage) -> None:
        self.stream = stream
        self._storage = storage
        workers, agents = layout.totals.shape
        self.rings = [[Ring(stream, layout, packed, w, a) for a in range(agents)] for w in range(workers)]
        for worker in range(workers):
            storage.on_overwrite[worker, stream.ring] = self._clobber(worker)

    def _clobber(self, worker: int) -> Callable[[int, int], None]:
        def clobber(lo: int, hi: int) -> None:
            for ring in self.rings[worker]:
                ring.clobber(lo, hi)

        return clobber

    def land(self, copy: Copy) -> Any:
        """Complete a copy; returns the agent that waited for it, if any can go on."""
        ring = copy.ring
        slot = ring.land(copy.number)
        at = (ring.agent * self.stream.slots + slot) * ring.slot_bytes
        self._storage.overwritten(ring.worker, self.stream.ring, at, at + ring.slot_bytes)
        if ring.waiter is not None and ring.ready():
            waiter, ring.waiter = ring.waiter, None
            return waiter
        return None
