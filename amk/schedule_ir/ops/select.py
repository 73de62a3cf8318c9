"""Choose the next token from the workers' candidates; every agent computes the same one."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op

REQUEST = ("forced", "eos0", "eos1", "eos2", "eos3")
"""Words of the request buffer: number of given tokens, then token ids that end the text (-1 for none)."""


class Selection(Op):
    """token <- prompt[pos + 1] while pos + 1 < forced, else the index of the largest candidate (lowest slot first).

    After an end-of-text token was produced, it is repeated. Worker 0, agent 0 stores the token in output[n], n counting
    tokens of this launch. pos and epoch advance by one.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos", "epoch", "done")
    perhaps: ClassVar[tuple[str, ...]] = ("best_value", "best_index")
    candidate: ClassVar[str]
    candidates: int
    best_value: Name
    best_index: Name
    request: Name
    prompt: Name
    output: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        out = [
            *geo.span("read", self.best_value, 0, self.candidates, (f"{self.candidate}_value", 0)),
            *geo.span("read", self.best_index, 0, self.candidates, (f"{self.candidate}_index", 0)),
            *geo.span("read", self.request, 0, len(REQUEST), None),
            *geo.span("read", self.prompt, 0, geo.buffers[self.prompt].elements, None),
        ]
        if env.worker == 0 and env.agent == 0:
            n = env.loops["n"]
            out += geo.span("write", self.output, n, n + 1, ("output", 0))
        return out

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        """All candidates, one index, and one word of the prompt."""
        found = [a for a in self.accesses(env, geo) if a.buffer not in (self.best_index, self.prompt)]
        return [*found, *geo.span("read", self.best_index, 0, 1, None), *geo.span("read", self.prompt, 0, 1, None)]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        regs = mem.regs
        forced, *eos = (int(v) for v in mem.read_int(self.request, 0, len(REQUEST)))
        regs["pos"] += 1
        regs["epoch"] += 1
        if regs["pos"] < forced:
            regs["token"] = int(mem.read_int(self.prompt, regs["pos"], regs["pos"] + 1)[0])
        elif not regs["done"]:
            winner = int(np.argmax(mem.read(self.best_value, 0, self.candidates)))
            regs["token"] = int(mem.read_int(self.best_index, winner, winner + 1)[0])
            regs["done"] = int(regs["token"] in eos)
        if env.worker == 0 and env.agent == 0:
            n = env.loops["n"]
            mem.write(self.output, n, [regs["token"]])


class SelectOp(Selection):
    """The candidates are the agents' largest logits."""

    op: Literal["select"] = "select"
    candidate: ClassVar[str] = "best"
