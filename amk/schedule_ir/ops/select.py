"""Choose the next token from the workers' candidates; every agent computes the same one."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op
from amk.schedule_ir.ops.begin import ENDS, done_register, given_rows, pos_register, token_register
from amk.schedule_ir.ops.precondition import (
    ALONE,
    OF_A_TEXT,
    PER_TOKEN,
    Need,
    ascending_rows,
    number,
    own,
    row,
    wide,
)

REJECTED = -1
"""What output has in place of a token behind a row that was no right guess."""
REQUEST = ("forced", "eos0", "eos1", "eos2", "eos3")
"""Words of the request buffer: number of given tokens, then token ids that end the text (-1 for none). In a batch the
numbers of given tokens of the further sequences follow."""


def request_words(batch: int) -> int:
    """Length of the request buffer."""
    return len(REQUEST) + batch - 1


class Selection(Op):
    """token <- prompt[pos + 1] while pos + 1 < forced, else the index of the largest candidate (lowest slot first,
    which is the lowest row, as workers and their agents have rows in their order).

    After an end-of-text token was produced, it is repeated. Worker 0, agent 0 stores the token in output[n], n counting
    tokens of this launch. pos and epoch advance by one. In a batch every sequence has its own prompt, its own number of
    given tokens and its own end, and all have the same position: one whose prompt is shorter chooses sooner. If
    they are live, each has its own; all advance, those that have ended too.

    Where a step reads `rows` rows of a sequence, output[n] has the token behind each row: prompt[pos + r + 1] while
    given, else the largest candidate of row r. The last one is the next step's first token, whose further rows are read
    from the prompt; pos advances by `rows`. Whoever launches such a step has given all of its rows.

    If the schedule `accepts`, rows behind the first may be guesses, which are read from the prompt, too, beyond what is
    given. A row counts as long as the token behind the one before it is its own, and does not end the text. The token
    behind the last row that counts is the next step's first, pos advances by the rows that count, and output has
    `REJECTED` behind the others.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos", "epoch", "done")
    perhaps: ClassVar[tuple[str, ...]] = ("best_value", "best_index")
    needs: ClassVar[tuple[Need, ...]] = (
        OF_A_TEXT,
        PER_TOKEN,
        Need("some", number(1) <= own("candidates"), "there is a candidate"),
        Need("fetches", ALONE | own("candidates").multiple_of(wide("best_value")), "candidates are whole fetches"),
        Need("candidates", ALONE | row("best_index").equals(row("best_value")), "a candidate has one place"),
        Need(
            "rows", ALONE | row("best_value").multiple_of(wide("best_value")), "every sequence's row is whole fetches"
        ),
        Need(
            "order",
            ascending_rows(),
            "workers have rows of lm_head in their order: of equal candidates the first counts",
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
            n = env.loops["n"] * geo.vectors
            out += geo.span("write", self.output, n, n + geo.vectors, ("output", 0))
        return out

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        """All candidates, one index, and one word of the prompt, for each sequence."""
        found = [a for a in self.accesses(env, geo) if a.buffer not in (self.best_index, self.prompt)]
        return [
            *found,
            *geo.rows("read", self.best_index, 0, 1, None),
            *geo.span("read", self.prompt, 0, geo.vectors, None),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        regs = mem.regs
        words = [int(v) for v in mem.read_int(self.request, 0, request_words(geo.batch))]
        behind = self._behind_sequences if geo.rows_each == 1 else self._accepted if geo.accepts else self._behind_rows
        output = behind(geo, mem, words)
        regs["epoch"] += 1
        if env.worker == 0 and env.agent == 0:
            mem.write(self.output, env.loops["n"] * geo.vectors, output)

    def _largest(self, geo: Geometry, mem: Memory, vector: int) -> int:
        """The token with the largest candidate of a row."""
        first = geo.row(self.best_value, vector)
        winner = int(np.argmax(mem.read(self.best_value, first, first + self.candidates)))
        at = geo.row(self.best_index, vector) + winner
        return int(mem.read_int(self.best_index, at, at + 1)[0])

    def _behind_sequences(self, geo: Geometry, mem: Memory, words: list[int]) -> list[int]:
        """The next token of each sequence."""
        regs, names = mem.regs, [token_register(s) for s in range(geo.batch)]
        for s in range(geo.batch if geo.live else 1):
            regs[pos_register(s)] += 1
        for s, name in enumerate(names):
            forced = words[0] if s == 0 else words[len(REQUEST) + s - 1]
            pos = regs[pos_register(s if geo.live else 0)]
            if pos < forced:
                at = s * (geo.buffers[self.prompt].elements // geo.batch) + pos
                regs[name] = int(mem.read_int(self.prompt, at, at + 1)[0])
            elif not regs[ends := done_register(s)] >> s % ENDS & 1:
                regs[name] = self._largest(geo, mem, s)
                ended = regs[ends] | int(regs[name] in words[1 : len(REQUEST)]) << s % ENDS
                regs[ends] = (ended + 2**31) % 2**32 - 2**31  # as a signed word
        return [regs[name] for name in names]

    def _behind_rows(self, geo: Geometry, mem: Memory, words: list[int]) -> list[int]:
        """The token behind each row; registers move on to the rows of the next step."""
        regs, output = mem.regs, list[int]()
        for r in range(geo.rows_each):
            at, last = regs["pos"] + r + 1, r == geo.rows_each - 1
            if at < words[0]:
                output.append(int(mem.read_int(self.prompt, at, at + 1)[0]))
            elif last and regs["done"]:
                output.append(regs["token"])
            else:
                output.append(self._largest(geo, mem, r))
                regs["done"] |= int(last and output[-1] in words[1 : len(REQUEST)])
        regs["token"] = output[-1]
        regs["pos"] += geo.rows_each
        given_rows(geo, mem, self.prompt)
        return output

    def _accepted(self, geo: Geometry, mem: Memory, words: list[int]) -> list[int]:
        """The token behind each row that counts; registers move on to the rows of the next step."""
        regs, found = mem.regs, list[int]()
        for r in range(geo.rows_each):
            at = regs["pos"] + r + 1
            if in_prompt := at < words[0]:
                found.append(int(mem.read_int(self.prompt, at, at + 1)[0]))
            else:
                found.append(regs["token"] if regs["done"] else self._largest(geo, mem, r))
                regs["done"] |= int(found[-1] in words[1 : len(REQUEST)])
            last = r == geo.rows_each - 1 or bool(regs["done"] and not in_prompt)
            if last or found[-1] != int(mem.read_int(self.prompt, at, at + 1)[0]):
                break
        regs["token"] = found[-1]
        regs["pos"] += len(found)
        given_rows(geo, mem, self.prompt)
        return found + [REJECTED] * (geo.rows_each - len(found))


class SelectOp(Selection):
    """The candidates are the agents' largest logits."""

    op: Literal["select"] = "select"
    candidate: ClassVar[str] = "best"
