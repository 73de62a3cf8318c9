"""What each step does with its warp's ring of weights, as `GemvOp` and `RefillOp` say: fills of slots, waits for them.

Every slot is filled by one bulk copy of the stream's `chunk_bytes`, and fill number n of a slot, counted from 1, is
awaited by one drain. Slots are drained in turn. Of a stream that runs ahead, as many slots as there are, or chunks of
the launch, are filled before the first step.
"""

from __future__ import annotations

from collections.abc import Sequence

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Geometry, Stream
from amk.schedule_ir.ops import AnyOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp

FILLS, WAITS = "fills", "waits"


def filled(slot: int | str, size: int) -> str:
    return f"fills slot {slot} with {size:,} bytes"


def waited_fill(slot: int | str, number: int) -> str:
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
        return self._asked(range(self.stream.slots)) if self.stream.run_ahead else []

    def of(self, op: AnyOp, env: Env) -> tuple[list[str], list[str]]:
        """The fills and waits of the next step."""
        self.fills, self.waits = [], []
        if isinstance(op, GemvOp) and op.stream == self.stream.name:
            self._product(op, env)
        elif isinstance(op, RefillOp) and op.stream == self.stream.name:
            count = min(op.most, self.owed)
            self.fills += self._asked(range(self.drains - self.owed, self.drains - self.owed + count))
            self.owed -= count
        return self.fills, self.waits

    def _asked(self, numbers: range) -> list[str]:
        """The fills of these slots, counted through all turns, as far as there are chunks."""
        numbers = numbers[: self.left]
        self.left -= len(numbers)
        return [filled(number % self.stream.slots, self.stream.chunk_bytes) for number in numbers]

    def _product(self, op: GemvOp, env: Env) -> None:
        lo, hi, _ = op.share(env, self.geometry)
        slots, ahead = self.stream.slots, self.stream.run_ahead
        if not ahead:
            self.fills += self._asked(range(self.drains, self.drains + min(slots, hi - lo)))
        for remaining in reversed(range(hi - lo)):
            self.waits.append(waited_fill(self.drains % slots, self.drains // slots + 1))
            self.drains += 1
            if remaining < op.deferred - self.owed:
                self.owed += 1
            elif ahead or remaining >= slots:
                oldest = self.drains - 1 - self.owed
                self.fills += self._asked(range(oldest, oldest + 1))
