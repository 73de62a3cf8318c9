"""A schedule on the interpreter, with the interface of the GPU engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.request import TextEngine, slice_buffers, slice_result, tokens_of
from amk.interpreter.interpret import Copies, Machine
from amk.interpreter.memory import Numerics
from amk.interpreter.order import Order, RoundRobin
from amk.models.row_groups import TensorSource
from amk.schedule_ir.schedule import Schedule
from amk.weights.quantised import Quantiser, nearest


class CpuEngine(TextEngine):
    """Executes the schedule in numpy. order: makes the interleaving of each launch."""

    def __init__(
        self,
        schedule: Schedule,
        source: TensorSource,
        *,
        numerics: Numerics = "exact",
        copies: Copies = "whole",
        order: Callable[[], Order[Any]] = RoundRobin,
        quantise: Quantiser = nearest,
    ) -> None:
        self.schedule = schedule
        self._machine = Machine(schedule, source, numerics=numerics, copies=copies, quantise=quantise)
        self._order = order
        self._words = schedule.state_words
        self._set_state(dict.fromkeys(self._words, 0))

    def _begin(
        self, buffers: Mapping[str, NDArray[np.int32]], state: Mapping[str, int], lengths: Sequence[int]
    ) -> None:
        for name, data in buffers.items():
            self._machine.set(name, data)
        self._set_state(self.state() | dict(state))

    def step(self, tokens: int) -> NDArray[np.int32]:
        """Run `tokens` tokens and return those that were given or chosen, [tokens, batch] in a batch. Raises Fault,
        AMK014 for a launch that leaves the context."""
        self._launches(tokens)
        self._machine.launch(tokens, self._order())
        return tokens_of(self.schedule, self._machine.get("output")[: tokens * self.schedule.vectors])

    def through(self, hidden: NDArray[np.float32], position: int) -> NDArray[np.float32]:
        """A slice for one token: the hidden state or the logits that it makes of a hidden state."""
        for name, data in slice_buffers(self.schedule, hidden, position).items():
            self._machine.set(name, data)
        self._launches(1)
        self._machine.launch(1, self._order())
        return self._machine.get(slice_result(self.schedule)[0])

    def memory(self, name: str) -> NDArray[Any]:
        """A global buffer itself, f32 or i32 [elements]: the interpreter keeps narrower types so, too."""
        return self._machine.memory(name)

    def state(self) -> dict[str, int]:
        return dict(zip(self._words, self._machine.get("state").tolist(), strict=True))

    def logits(self, row: int | None = None) -> NDArray[np.float32]:
        """f32 [vocab] of the last token that ran, [batch, vocab] in a batch; row: of that vector alone."""
        found, vectors = self._machine.get("logits"), self.schedule.vectors
        if row is not None:
            vocab = self.schedule.model.vocab
            return found[row * vocab : (row + 1) * vocab]
        return found if vectors == 1 else found.reshape(vectors, -1)

    @property
    def events(self) -> int:
        """Events executed so far, copies included."""
        return self._machine.events

    def free(self) -> None:
        """Nothing is held outside the process."""

    def _set_state(self, words: dict[str, int]) -> None:
        self._machine.set("state", np.array([words[name] for name in self._words], np.int32))
