"""Texts from an engine: the prompt goes in, tokens come out as they are chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.room import check_room
from amk.engine.backends.schedule_backend import PromptReader
from amk.schedule_ir.ops.select import REQUEST
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule


class Engine(Protocol):
    """Something that runs a schedule; the interpreter and the GPU are alike to a session.

    `request` starts a text at token `start`, before which the cache has all. `step(n)` feeds n tokens and returns, for
    each, the token that follows it: the next one of the prompt while there is one, then the model's choice; after the
    end of the text it repeats. In a batch there is one text a sequence, and a row of tokens for each step.
    """

    schedule: Schedule

    def request(
        self, prompt: list[int], eos: tuple[int, ...] = ..., sampling: Sampling = ..., start: int = ...
    ) -> None: ...
    def request_batch(
        self,
        prompts: Sequence[Sequence[int]],
        eos: tuple[int, ...] = ...,
        sampling: Sampling | Sequence[Sampling] = ...,
        start: int = ...,
    ) -> None: ...
    def step(self, tokens: int) -> NDArray[np.int32]: ...
    def free(self) -> None: ...


@dataclass
class Session:
    """One engine and its conversations. slice: tokens per launch while generating; 1 streams each as it is chosen.

    prompts: reads what is given before the last token, where it does.
    """

    engine: Engine
    slice: int = 1
    prompts: PromptReader | None = None

    def generate(
        self, prompt: Sequence[int], max_tokens: int, eos: Sequence[int] = (), sampling: Sampling = GREEDY
    ) -> Iterator[int]:
        """Chosen tokens, at most max_tokens and at most what the context holds; an end-of-text token comes last.

        Raises AMK014 if the prompt is empty, has ids outside the vocabulary or leaves no room in the context, AMK015 if
        the schedule cannot choose tokens as `sampling` says.
        """
        schedule = self.engine.schedule
        check_prompt(schedule, prompt)
        known = tuple(eos)
        start = self._read_at_once([prompt])
        self.engine.request(list(prompt), known[: len(REQUEST) - 1], sampling, start)
        self._feed(len(prompt) - 1 - start)
        left = min(max_tokens, schedule.kv.context - len(prompt) + 1)
        while left:
            tokens = self.engine.step(min(left, self.slice, schedule.launch.max_tokens)).tolist()
            for token in tokens:
                yield token
                if token in known:
                    return
            left -= len(tokens)

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        eos: Sequence[int] = (),
        sampling: Sampling | Sequence[Sampling] = GREEDY,
    ) -> Iterator[tuple[int, int]]:
        """(sequence, chosen token) of texts that are decoded together, for each as `generate` yields them.

        All texts start at position 0 and advance together: one with a shorter prompt chooses while others still read.
        sampling: of all, or of each its own.

        Raises AMK014 for a prompt that cannot be run, AMK015 if the schedule cannot choose tokens so, AMK016 unless
        there is a prompt for each sequence of the batch.
        """
        schedule, known = self.engine.schedule, tuple(eos)
        for prompt in prompts:
            check_prompt(schedule, prompt)
        start = self._read_at_once(prompts)
        self.engine.request_batch(prompts, known[: len(REQUEST) - 1], sampling, start)
        begin = [len(prompt) - 1 for prompt in prompts]
        end = [b + min(max_tokens, schedule.kv.context - b) for b in begin]
        at = min(begin)
        self._feed(at - start)
        while at < max(end):
            count = min(max(end) - at, self.slice, schedule.launch.max_tokens)
            rows = self.engine.step(count).reshape(count, -1).tolist()
            for row in rows:
                for sequence, token in enumerate(row):
                    if begin[sequence] <= at < end[sequence]:
                        yield sequence, token
                        end[sequence] = at if token in known else end[sequence]
                at += 1

    def _read_at_once(self, prompts: Sequence[Sequence[int]]) -> int:
        """The position at which the kernel begins: before it all sequences were read, each by itself."""
        end = min(len(prompt) for prompt in prompts) - 1
        if self.prompts is None:
            return 0
        every = all(self.prompts.read(prompt[:end], 0, sequence) for sequence, prompt in enumerate(prompts))
        return end if every else 0

    def _feed(self, tokens: int) -> None:
        """Run the given tokens, in as few launches as the output buffer allows."""
        while tokens:
            now = min(tokens, self.engine.schedule.launch.max_tokens)
            self.engine.step(now)
            tokens -= now


def check_prompt(schedule: Schedule, prompt: Sequence[int]) -> None:
    """AMK014 unless the schedule can run the prompt and at least one more token."""
    check_room(prompt, schedule.model.vocab, schedule.kv.context)
