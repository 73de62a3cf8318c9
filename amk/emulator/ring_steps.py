"""What each step does with its warp's ring of weights, as `GemvOp` and `RefillOp` say: fills of slots, waits for them.

Slots are drained in turn, and a fill has the stream's `chunk_bytes`. A stream that runs ahead fills
as many slots as there are, or chunks of the launch, before the first step.

Bulk copies: one for each fill. Fill number n of a slot, counted from 1, is awaited by one drain.

Copies in groups (`cp_async`): one group for each fill and, so that numbers of groups say which are over, an empty one
where there is nothing to fill. Every drain waits for the group of its fill, as many before the last as the ring has
slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Geometry, Stream
from amk.schedule_ir.ops import AnyOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp

FILLS, WAITS = "fills", "waits"
EMPTY = "commits a group without copies"


def fill_text(slot: int | str, size: int) -> str:
    return f"fills slot {slot} with {size:,} bytes"


def group_wait_text(number: int) -> str:
    return f"waits for group {number} of copies"


def fill_wait_text(slot: int | str, number: int) -> str:
    return f"waits for fill {number} of slot {slot}"


class RingSteps:
    """One warp's, in the order of its steps.

    left: chunks of the launch that are still to be asked for. owed: fills that drains have held back.
    """

    def __init__(self, stream: Stream, geometry: Geometry, steps: Sequence[tuple[AnyOp, Env]]) -> None:
        self.stream, self.geometry = stream, geometry
        shares = [op.share(env, geometry) for op, env in steps if isinstance(op, GemvOp) and op.stream == stream.name]
        self.left = sum(hi - lo for lo, hi, _ in shares)
        self.drains = self.owed = 0
        self.fills: list[str] = []
        self.waits: list[str] = []

    def before(self) -> list[str]:
        """The fills before all steps."""
        return self._next_fills(range(self.stream.slots)) if self.stream.run_ahead else []

    def of(self, op: AnyOp, env: Env) -> tuple[list[str], list[str]]:
        """The fills and waits of the next step."""
        self.fills, self.waits = [], []
        if isinstance(op, GemvOp) and op.stream == self.stream.name:
            self._product(op, env)
        elif isinstance(op, RefillOp) and op.stream == self.stream.name:
            count = min(op.most, self.owed)
            self.fills += self._next_fills(range(self.drains - self.owed, self.drains - self.owed + count))
            self.owed -= count
        return self.fills, self.waits

    def _next_fills(self, numbers: range) -> list[str]:
        """The fills of these slots, counted through all turns, as far as there are chunks."""
        numbers = numbers[: self.left]
        self.left -= len(numbers)
        return [fill_text(number % self.stream.slots, self.stream.chunk_bytes) for number in numbers]

    def _product(self, op: GemvOp, env: Env) -> None:
        lo, hi, _ = op.share(env, self.geometry)
        slots, ahead = self.stream.slots, self.stream.run_ahead
        if not ahead:
            self.fills += self._next_fills(range(self.drains, self.drains + min(slots, hi - lo)))
        for remaining in reversed(range(hi - lo)):
            self.waits.append(fill_wait_text(self.drains % slots, self.drains // slots + 1))
            self.drains += 1
            if remaining < op.deferred - self.owed:
                self.owed += 1
            elif ahead or remaining >= slots:
                oldest = self.drains - 1 - self.owed
                self.fills += self._next_fills(range(oldest, oldest + 1))


class GroupSteps(RingSteps):
    """groups: committed so far."""

    groups = 0

    def before(self) -> list[str]:
        return self._groups(range(self.stream.slots), self.stream.slots) if self.stream.run_ahead else []

    def _groups(self, numbers: range, count: int) -> list[str]:
        """The fills of these slots, and as many groups without copies as make up the count."""
        fills = self._next_fills(numbers)
        self.groups += count
        return fills + [EMPTY] * (count - len(fills))

    def _product(self, op: GemvOp, env: Env) -> None:
        lo, hi, _ = op.share(env, self.geometry)
        slots, ahead = self.stream.slots, self.stream.run_ahead
        if not ahead:
            self.fills += self._groups(range(self.drains, self.drains + min(slots, hi - lo)), slots)
        for remaining in reversed(range(hi - lo)):
            self.waits.append(group_wait_text(self.groups - (slots - 1)))
            more = 1 if ahead or remaining >= slots else 0
            self.fills += self._groups(range(self.drains, self.drains + more), 1)
            self.drains += 1
