"""Load the launch state into registers."""

from __future__ import annotations

from typing import Literal

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op

STATE = ("token", "pos", "epoch", "done")
"""Words of the state buffer for one sequence. epoch counts tokens since the counters were zeroed, over all launches."""


def token_register(sequence: int) -> str:
    """Name of the register that holds the current token of a sequence of the batch."""
    return f"token.{sequence}" if sequence else "token"


def state_words(batch: int) -> tuple[str, ...]:
    """Words of the state buffer: all sequences stand at the same position; bit s of done is sequence s's."""
    return (*STATE, *(token_register(s) for s in range(1, batch)))


class BeginOp(Op):
    """token, pos, epoch, done <- state, in every agent; the tokens of further sequences stand behind them."""

    op: Literal["begin"] = "begin"
    state: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        return geo.span("read", self.state, 0, len(state_words(geo.batch)), ("state", 0))

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        names = state_words(geo.batch)
        for name, value in zip(names, mem.read_int(self.state, 0, len(names)), strict=True):
            mem.regs[name] = int(value)
