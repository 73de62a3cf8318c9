"""Texts from a schedule whose steps read several rows of one: prompts in blocks, and guesses that a step verifies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.backend import common
from amk.engine.backends.choice import choose
from amk.engine.backends.room import Token, check_room, token_numbers
from amk.engine.backends.schedule_backend import PromptReader, ScheduleBackend, ScheduleEngine
from amk.schedule_ir.ops.select import REJECTED, REQUEST
from amk.schedule_ir.sampling import Sampling, serves
from amk.schedule_ir.schedule import mode_of
from amk.weights.bfloat import F32


class RowsBackend(ScheduleBackend):
    """A schedule with several rows a step. The largest logits are found where it runs, other choices on the host.

    A step whose last rows are behind the text writes to the cache there, too; whatever comes there overwrites it.
    steps: of a launch, where the schedule accepts guesses by itself.
    """

    def __init__(self, engine: ScheduleEngine, prompts: PromptReader | None = None, steps: int = 1) -> None:
        super().__init__(engine, prompts=prompts)
        self.rows, self.steps, self._mode = engine.schedule.rows, steps, mode_of(engine.schedule)
        self.trees = engine.schedule.tree

    def logits(self, tokens: Sequence[Token]) -> F32:
        (found,) = self.every(tokens, len(tokens) - 1)
        return np.asarray(found, np.float32)

    def every(self, tokens: Sequence[Token], first: int = 0) -> F32:
        found: F32 = np.concatenate([self.engine.logits()[lo:hi] for lo, hi, _ in self._passes(tokens, first)])
        return found

    def choices(self, tokens: Sequence[Token], first: int, sampling: Sampling) -> Iterator[int]:
        """The tokens that are chosen behind token `first` and behind each that follows it."""
        # behind a guess that it does not accept a step shows no token
        if sampling.temperature or self.engine.schedule.accepts:
            yield from (choose(row, sampling, pos) for pos, row in enumerate(self.every(tokens, first), first))
        else:
            for lo, hi, largest in self._passes(tokens, first):
                yield from largest[lo:hi].tolist()

    def branches(self, tokens: Sequence[Token], nodes: Sequence[int], parents: Sequence[int]) -> F32:
        """Of a schedule whose rows are a tree, as many nodes a step as it has rows behind those of the text."""
        if not self.engine.schedule.tree:
            return super().branches(tokens, nodes, parents)
        found = np.empty((1 + len(nodes), self.engine.schedule.model.vocab), np.float32)
        ways: list[list[int]] = []  # from the text to each node
        for node, parent in enumerate(parents):
            ways.append([*(ways[parent] if parent >= 0 else ()), node])
        longest = max(ways, key=len, default=[])
        check_room([*tokens, *(nodes[node] for node in longest)], self.engine.schedule.model.vocab, self.context)
        left = sorted(ways)  # what follows a node comes behind it at once
        while True:
            first = left[0] if left else []
            begin = first[: max(len(first) - (self.rows - 1), 0)]  # is read as text
            text = [*tokens, *(nodes[node] for node in begin)]
            lead = self._lead(text, min(self.rows - 1, max(len(left), len(first))))
            some, done = self._step_of_nodes(left, begin, self.rows - 1 - lead)
            row_of = {node: row for row, node in enumerate([*begin[-1:], *some] if begin else [-1, *some], lead)}
            behind = [row_of[parents[node]] for node in some]
            start = len(text) - 1 - lead
            numbers = token_numbers(text)
            self.engine.request(
                [*numbers, *(nodes[node] for node in some)], start=start, prompt_length=start + 1,
                parents=[*range(lead), *behind],
            )  # fmt: skip
            self.engine.step(1)
            chain = next((n for n, row in enumerate(behind) if row != lead + n), len(some))
            self._read = [*text, *(nodes[node] for node in some[:chain])]
            logits = self.engine.logits()
            for node, row in row_of.items():
                found[1 + node] = logits[row]
            left = left[done:]
            if not left:
                return found

    def _lead(self, text: Sequence[Token], nodes: int) -> int:
        """Read the text but for its last token, as far as a step of so many nodes has no rows for it: how many rows of
        that step are the text's before its last token."""
        check_room(text, self.engine.schedule.model.vocab, self.context)
        last, numbers = len(text) - 1, token_numbers(text)
        self.cached = min(common(self._read, text), last)
        self._read = self._read[: self.cached]
        at = self._read_before(numbers, last)
        if last - at > self.rows - 1 - nodes:
            start = min(at, self.context - self.rows)
            self.engine.request(numbers, start=start, prompt_length=start + 1)
            self.engine.step(1)
            at, self._read = last, list(text[:last])
        return last - min(at, self.context - self.rows)

    @staticmethod
    def _step_of_nodes(left: Sequence[list[int]], begin: list[int], most: int) -> tuple[list[int], int]:
        """Nodes behind `begin` for one step, at most so many, with those between; how many of `left` they are."""
        some: dict[int, None] = {}
        for done, way in enumerate(left):
            more = [node for node in way[len(begin) :] if node not in some]
            if way[: len(begin)] != begin or len(some) + len(more) > most:
                return list(some), done
            some |= dict.fromkeys(more)
        return list(some), len(left)

    def extend(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        if self.accepts(sampling):
            return [token for step in self.accepted(tokens, len(tokens), most, sampling, eos) for token in step]
        return list(self.choices(tokens, len(tokens) - 1, sampling))

    def accepts(self, sampling: Sampling) -> bool:
        return self.engine.schedule.accepts and serves(self._mode, sampling)

    def accepted(
        self, tokens: Sequence[Token], prefix: int, most: int, sampling: Sampling, eos: Sequence[int]
    ) -> list[list[int]]:
        """One launch behind the first `prefix` tokens, what follows them are guesses: what each step adds to the text,
        at most `most` tokens in all, none behind one of `eos`."""
        first = prefix - 1
        text = [*self._keep_before(tokens[:prefix], first), *token_numbers(tokens[prefix:])]
        at = min(self._read_before(text[:prefix], first), self.context - self.rows)
        room = (self.context - at) // self.rows, self.engine.schedule.launch.max_tokens
        self.engine.request(text[: self.context], tuple(eos)[: len(REQUEST) - 1], sampling, at, prefix)
        found, added, done = list[list[int]](), list[int](), False
        for step in self.engine.step(min(self.steps, most, *room)).reshape(-1, self.rows).tolist():
            shown = [token for token in step if token != REJECTED]
            new, at = shown[max(prefix - 1 - at, 0) :], at + len(shown)
            new = new[: next((n + 1 for n, token in enumerate(new) if token in eos), len(new))][: most - len(added)]
            if new and not done:
                found.append(new)
                added += new
                done = added[-1] in eos
        self._read = [*tokens[:prefix], *added[:-1]]
        return found

    def _passes(self, tokens: Sequence[Token], first: int) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
        """Read what the cache does not hold, and token `first` and what follows in any case.

        For each step with such tokens: their rows, from and to, and the token with the largest logit behind every row.
        """
        text = self._keep_before(tokens, first)
        at = self._read_before(text, first)
        while at < len(text):
            start = min(at, self.context - self.rows)  # a step that begins earlier reads some tokens again
            self.engine.request(text, start=start, prompt_length=start + 1)
            largest = self.engine.step(1).reshape(-1)
            end = min(start + self.rows, len(text))
            self._read = list(tokens[:end])
            if end > first:
                yield max(first, at) - start, end - start, largest
            at = end

    def _read_before(self, text: list[int], first: int) -> int:
        """Read tokens before `first` of which nothing is asked, as far as they are whole steps: how many are read."""
        at = self.cached
        if self.prompts is not None and self.prompts.read(text[at:first], at):
            at = first
        steps = (first - at) // self.rows
        if steps:
            self.engine.request(text, start=at)
        while steps:
            count = min(steps, self.engine.schedule.launch.max_tokens)
            self.engine.step(count)
            at, steps = at + count * self.rows, steps - count
        self._read = list(text[:at])
        return at
