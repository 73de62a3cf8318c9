"""Go on with the next given rows of a text, where a step has no output head and chooses no token."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op
from amk.schedule_ir.ops.begin import given_rows
from amk.schedule_ir.ops.precondition import PER_TOKEN, ROWS_WITHOUT_HEAD, Need


class AdvanceOp(Op):
    """output[n, r] = prompt[pos + r + 1], the token behind each row; the rows of the next step are the prompt's from
    pos + rows on; behind the context, its last word again. pos advances by the rows of a step, epoch by one.

    Stands where `select` does in a schedule with an output head. Worker 0, agent 0 stores the output.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos", "epoch")
    needs: ClassVar[tuple[Need, ...]] = (
        PER_TOKEN,
        Need(
            "given",
            ROWS_WITHOUT_HEAD,
            "a step goes on without choosing where it has no output head, and its rows are given",
        ),
    )
    op: Literal["advance"] = "advance"
    prompt: Name
    output: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        found = geo.span("read", self.prompt, 0, geo.buffers[self.prompt].elements, None)
        if env.worker == 0 and env.agent == 0:
            n = env.loops["n"] * geo.vectors
            found = [*found, *geo.span("write", self.output, n, n + geo.vectors, ("output", 0))]
        return found

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        found = [access for access in self.accesses(env, geo) if access.buffer != self.prompt]
        return [*found, *geo.span("read", self.prompt, 0, geo.vectors, None)]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        regs, last = mem.regs, geo.buffers[self.prompt].elements - 1
        places = [min(regs["pos"] + r + 1, last) for r in range(geo.rows_each)]
        output = [int(mem.read_int(self.prompt, at, at + 1)[0]) for at in places]
        regs["token"] = output[-1]
        regs["pos"] += geo.rows_each
        regs["epoch"] += 1
        given_rows(geo, mem, self.prompt)
        if env.worker == 0 and env.agent == 0:
            mem.write(self.output, env.loops["n"] * geo.vectors, output)
