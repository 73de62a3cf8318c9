"""Texts from a schedule whose steps read several rows of one: prompts in blocks, and guesses that a step verifies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.backend import common
from amk.engine.backends.choice import choose
from amk.engine.backends.room import Token, check_room
from amk.engine.backends.schedule_backend import PromptReader, ScheduleBackend, ScheduleEngine
from amk.schedule_ir.sampling import Sampling
from amk.weights.bfloat import F32


class RowsBackend(ScheduleBackend):
    """A schedule with several rows a step. The largest logits are found where it runs, other choices on the host.

    A step whose last rows are behind the text writes to the cache there, too; whatever comes there overwrites it.
    """

    def __init__(self, engine: ScheduleEngine, prompts: PromptReader | None = None) -> None:
        super().__init__(engine, prompts=prompts)
        self.rows = engine.schedule.rows

    def logits(self, tokens: Sequence[Token]) -> F32:
        (found,) = self.every(tokens, len(tokens) - 1)
        return np.asarray(found, np.float32)

    def every(self, tokens: Sequence[Token], first: int = 0) -> F32:
        found: F32 = np.concatenate([self.engine.logits()[lo:hi] for lo, hi, _ in self._passes(tokens, first)])
        return found

    def choices(self, tokens: Sequence[Token], first: int, sampling: Sampling) -> Iterator[int]:
        """The tokens that are chosen behind token `first` and behind each that follows it."""
        if sampling.temperature:
            yield from (choose(row, sampling, pos) for pos, row in enumerate(self.every(tokens, first), first))
        else:
            for lo, hi, largest in self._passes(tokens, first):
                yield from largest[lo:hi].tolist()

    def extend(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        return list(self.choices(tokens, len(tokens) - 1, sampling))

    def _passes(self, tokens: Sequence[Token], first: int) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
        """Read what the cache does not hold, and token `first` and what follows in any case.

        For each step with such tokens: their rows, from and to, and the token with the largest logit behind every row.
        """
        check_room(tokens, self.engine.schedule.model.vocab, self.context)
        text = [int(token) for token in tokens]
        self.cached = min(common(self._read, tokens), first)
        self._read = self._read[: self.cached]
        at = self._given(text, first)
        while at < len(text):
            start = min(at, self.context - self.rows)  # a step that begins earlier reads some tokens again
            self.engine.request(text, start=start, given=start + 1)
            largest = self.engine.step(1).reshape(-1)
            end = min(start + self.rows, len(text))
            self._read = list(tokens[:end])
            if end > first:
                yield max(first, at) - start, end - start, largest
            at = end

    def _given(self, text: list[int], first: int) -> int:
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
