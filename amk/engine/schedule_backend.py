"""Texts from a schedule, on the interpreter or on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from amk.engine.backend import common
from amk.engine.room import check_room
from amk.schedule_ir.bfloat import F32
from amk.schedule_ir.ops.select import REQUEST
from amk.schedule_ir.sampling import GREEDY, Sampling, require
from amk.schedule_ir.schedule import Schedule, mode_of

GPU_SLICE = 8
"""Tokens of one launch on the GPU while a text streams."""


class ScheduleEngine(Protocol):
    """The interpreter or a GPU with a schedule of one sequence; `step` and `request` are those of `session.Engine`."""

    schedule: Schedule

    def request(
        self, prompt: list[int], eos: tuple[int, ...] = ..., sampling: Sampling = ..., start: int = ...
    ) -> None: ...
    def step(self, tokens: int) -> NDArray[np.int32]: ...
    def logits(self) -> F32: ...
    def free(self) -> None: ...


class ScheduleBackend:
    """A schedule; tokens are chosen where it runs unless their logits are asked for. slice: tokens of a launch."""

    def __init__(self, engine: ScheduleEngine, slice: int = 1) -> None:
        self.engine, self.context, self._slice = engine, engine.schedule.kv.context, slice
        self._read: list[int] = []
        self.cached = 0

    def logits(self, tokens: Sequence[int]) -> F32:
        self._begin(tokens, len(tokens) - 1)
        self._step(tokens, len(tokens))
        return self.engine.logits()

    def every(self, tokens: Sequence[int], first: int = 0) -> F32:
        return np.array([self.logits(tokens[: end + 1]) for end in range(first, len(tokens))], np.float32)

    def extend(self, tokens: Sequence[int], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        launch = self.engine.schedule.launch.max_tokens
        count = min(most, self._slice, launch, self.context - len(tokens) + 1)
        self._begin(tokens, len(tokens) - 1, tuple(eos), sampling)
        self._step(tokens, len(tokens) - 1)
        found: list[int] = self.engine.step(count).tolist()
        end = next((at + 1 for at, token in enumerate(found) if token in eos), len(found))
        self._read = [*tokens, *found[: end - 1]]
        return found[:end]

    def free(self) -> None:
        self.engine.free()

    def _begin(
        self, tokens: Sequence[int], wanted: int, eos: tuple[int, ...] = (), sampling: Sampling = GREEDY
    ) -> None:
        """Start at the first token that the cache does not hold; AMK015 for a choice that the schedule cannot make."""
        schedule = self.engine.schedule
        check_room(tokens, schedule.model.vocab, self.context)
        require(mode_of(schedule), sampling)
        self.cached = min(common(self._read, tokens), wanted)
        self._read = self._read[: self.cached]
        self.engine.request(list(tokens), eos[: len(REQUEST) - 1], sampling, self.cached)

    def _step(self, tokens: Sequence[int], end: int) -> None:
        """Run the given tokens up to `end`, in as few launches as the output buffer allows."""
        while len(self._read) < end:
            count = min(end - len(self._read), self.engine.schedule.launch.max_tokens)
            self.engine.step(count)
            self._read = list(tokens[: len(self._read) + count])
