"""Load the launch state into registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from amk.report.schema import unless
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, BufferField, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import LAYERS, LIVE, ROWS, SLICED, Need, Term, has

STATE = ("token", "pos", "epoch", "done")
"""Words of the state buffer for one sequence. epoch counts tokens since the counters were zeroed, over all launches."""


NAMED_PROMPT = Term(lambda site: getattr(site.op, "prompt") is not None)  # noqa: B009


def token_register(vector: int) -> str:
    """Name of the register that holds a token that the step reads: of a sequence of the batch, or of a row."""
    return f"token.{vector}" if vector else "token"


def pos_register(sequence: int) -> str:
    """Name of the register that holds the position of a sequence, where each has its own."""
    return f"pos.{sequence}" if sequence else "pos"


ENDS = 32
"""Sequences whose ends are bits of one register."""


def done_register(sequence: int) -> str:
    """Name of the register of which bit `sequence % ENDS` says whether that sequence has ended."""
    return f"done.{sequence // ENDS}" if sequence >= ENDS else "done"


def done_registers(batch: int) -> tuple[str, ...]:
    """Those of all sequences."""
    return tuple(map(done_register, range(0, batch, ENDS)))


def state_words(batch: int, live: bool = False) -> tuple[str, ...]:
    """Words of the state buffer: behind the first sequence's stand the tokens of further ones, if they are `live` their
    positions, otherwise all are at the first one's, and the ends of those behind the first `ENDS`."""
    further, ends = range(1, batch), done_registers(batch)[1:]
    return (*STATE, *map(token_register, further), *(map(pos_register, further) if live else ()), *ends)


def given_rows(geo: Geometry, mem: Memory, prompt: str) -> None:
    """token.r <- prompt[pos + r] for the rows of a step but the first; behind the context, the last word again."""
    for r in range(1, geo.rows_each):
        at = min(mem.regs["pos"] + r, geo.buffers[prompt].elements - 1)
        mem.regs[token_register(r)] = int(mem.read_int(prompt, at, at + 1)[0])


class BeginOp(Op):
    """token, pos, epoch, done <- state, in every agent; tokens and positions of further sequences stand behind them.

    A step of several rows of one sequence reads the tokens of the others from the prompt, at their positions. A slice
    of layers is given its position, i32 [1]: pos <- min(max(position[0], 0), context - 1), whatever the state says.
    The output head alone has none, and its pos counts launches.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need("rows", (ROWS <= 1) | NAMED_PROMPT, "further rows of a step are given tokens"),
        Need(
            "position",
            has("position").equals(SLICED & LAYERS),
            "a slice of layers, and nothing else, is given its position",
        ),
        Need("live", ~(SLICED & LIVE), "a slice of layers is given one position"),
    )
    own_fields: ClassVar[Mapping[str, BufferField]] = {"position": BufferField("global", "i32", "position")}
    op: Literal["begin"] = "begin"
    state: Name
    prompt: Name | None = unless(None)
    position: Name | None = unless(None)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        state = geo.span("read", self.state, 0, len(state_words(geo.batch, geo.live)), ("state", 0))
        if self.position is not None:
            state += geo.span("read", self.position, 0, 1, None)
        if self.prompt is None:
            return state
        return [*state, *geo.span("read", self.prompt, 0, geo.buffers[self.prompt].elements, None)]

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        found = [access for access in self.accesses(env, geo) if access.buffer != self.prompt]
        return [*found, *(geo.span("read", self.prompt, 0, geo.rows_each - 1, None) if self.prompt else ())]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        names = state_words(geo.batch, geo.live)
        for name, value in zip(names, mem.read_int(self.state, 0, len(names)), strict=True):
            mem.regs[name] = int(value)
        if self.position is not None:
            position = int(mem.read_int(self.position, 0, 1)[0])
            mem.regs["pos"] = min(max(position, 0), geo.context - 1)
        if self.prompt is not None:
            given_rows(geo, mem, self.prompt)
