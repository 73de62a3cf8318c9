"""Choose the next token from the workers' candidates; every agent computes the same one."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op
from amk.schedule_ir.ops.begin import token_register
from amk.schedule_ir.ops.precondition import ALONE, Need, number, own, row, wide

REQUEST = ("forced", "eos0", "eos1", "eos2", "eos3")
"""Words of the request buffer: number of given tokens, then token ids that end the text (-1 for none). In a batch the
numbers of given tokens of the further sequences follow."""


def request_words(batch: int) -> int:
    """Length of the request buffer."""
    return len(REQUEST) + batch - 1


class Selection(Op):
    """token <- prompt[pos + 1] while pos + 1 < forced, else the index of the largest candidate (lowest slot first).

    After an end-of-text token was produced, it is repeated. Worker 0, agent 0 stores the token in output[n], n counting
    tokens of this launch. pos and epoch advance by one. In a batch every sequence has its own prompt, its own number of
    given tokens and its own end, and all have the same position: one whose prompt is shorter chooses sooner.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos", "epoch", "done")
    perhaps: ClassVar[tuple[str, ...]] = ("best_value", "best_index")
    needs: ClassVar[tuple[Need, ...]] = (
        Need("some", number(1) <= own("candidates"), "there is a candidate"),
        Need("fetches", ALONE | own("candidates").multiple_of(wide("best_value")), "candidates are whole fetches"),
        Need("candidates", ALONE | row("best_index").equals(row("best_value")), "a candidate has one place"),
        Need(
            "rows", ALONE | row("best_value").multiple_of(wide("best_value")), "every sequence's row is whole fetches"
        ),
    )
    candidate: ClassVar[str]
    candidates: Count
    best_value: Name
    best_index: Name
    request: Name
    prompt: Name
    output: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        out = [
            *geo.rows("read", self.best_value, 0, self.candidates, (f"{self.candidate}_value", 0)),
            *geo.rows("read", self.best_index, 0, self.candidates, (f"{self.candidate}_index", 0)),
            *geo.span("read", self.request, 0, request_words(geo.batch), None),
            *geo.span("read", self.prompt, 0, geo.buffers[self.prompt].elements, None),
        ]
        if env.worker == 0 and env.agent == 0:
            n = env.loops["n"] * geo.batch
            out += geo.span("write", self.output, n, n + geo.batch, ("output", 0))
        return out

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        """All candidates, one index, and one word of the prompt, for each sequence."""
        found = [a for a in self.accesses(env, geo) if a.buffer not in (self.best_index, self.prompt)]
        return [*found, *geo.rows("read", self.best_index, 0, 1, None), *geo.rows("read", self.prompt, 0, 1, None)]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        regs = mem.regs
        words = [int(v) for v in mem.read_int(self.request, 0, request_words(geo.batch))]
        regs["pos"] += 1
        regs["epoch"] += 1
        names = [token_register(s) for s in range(geo.batch)]
        for s, name in enumerate(names):
            forced = words[0] if s == 0 else words[len(REQUEST) + s - 1]
            if regs["pos"] < forced:
                at = geo.row(self.prompt, s) + regs["pos"]
                regs[name] = int(mem.read_int(self.prompt, at, at + 1)[0])
            elif not regs["done"] >> s & 1:
                first = geo.row(self.best_value, s)
                winner = int(np.argmax(mem.read(self.best_value, first, first + self.candidates)))
                at = geo.row(self.best_index, s) + winner
                regs[name] = int(mem.read_int(self.best_index, at, at + 1)[0])
                regs["done"] |= int(regs[name] in words[1 : len(REQUEST)]) << s
        if env.worker == 0 and env.agent == 0:
            mem.write(self.output, env.loops["n"] * geo.batch, [regs[name] for name in names])


class SelectOp(Selection):
    """The candidates are the agents' largest logits."""

    op: Literal["select"] = "select"
    candidate: ClassVar[str] = "best"
