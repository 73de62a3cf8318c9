"""A schedule on the interpreter, with the interface of the GPU engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.engine.request import first_state, request_buffers, starts_of, tokens_of
from amk.schedule_ir.interpret import Copies, Machine
from amk.schedule_ir.machine.memory import Numerics
from amk.schedule_ir.machine.order import Order, RoundRobin
from amk.schedule_ir.quantised import Quantiser, nearest
from amk.schedule_ir.row_groups import TensorSource
from amk.schedule_ir.sampling import GREEDY, Sampling, require
from amk.schedule_ir.schedule import Schedule, mode_of


class CpuEngine:
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

    def request(
        self,
        prompt: list[int],
        eos: tuple[int, ...] = (),
        sampling: Sampling = GREEDY,
        start: int = 0,
        given: int | None = None,
    ) -> None:
        """Start a text at token `start` of the prompt, which is fed token by token, then tokens are chosen.

        given: see `request_buffers`. AMK015 if the schedule cannot choose tokens as `sampling` says.
        """
        self.request_batch([prompt], eos, sampling, start, given)

    def request_batch(
        self,
        prompts: Sequence[Sequence[int]],
        eos: tuple[int, ...] = (),
        sampling: Sampling = GREEDY,
        start: int | Sequence[int] = 0,
        given: int | None = None,
    ) -> None:
        """As `request`, for one prompt per sequence of the batch; AMK016 if they are not as many.

        start: of each its own, for sequences that are live.
        """
        require(mode_of(self.schedule), sampling)
        if mode_of(self.schedule) != "greedy":
            self._machine.set("sampling", sampling.words())
        for name, data in request_buffers(self.schedule, prompts, eos, given).items():
            self._machine.set(name, data)
        self._set_state(self.state() | first_state(prompts, starts_of(self.schedule, start)))

    def step(self, tokens: int) -> NDArray[np.int32]:
        """Run `tokens` tokens and return those that were given or chosen, [tokens, batch] in a batch. Raises Fault."""
        self._machine.launch(tokens, self._order())
        return tokens_of(self.schedule, self._machine.get("output")[: tokens * self.schedule.vectors])

    def state(self) -> dict[str, int]:
        return dict(zip(self._words, self._machine.get("state").tolist(), strict=True))

    def logits(self) -> NDArray[np.float32]:
        """f32 [vocab] of the last token that ran, [batch, vocab] in a batch."""
        found = self._machine.get("logits")
        return found if self.schedule.vectors == 1 else found.reshape(self.schedule.vectors, -1)

    @property
    def events(self) -> int:
        """Events executed so far, copies included."""
        return self._machine.events

    def free(self) -> None:
        """Nothing is held outside the process."""

    def _set_state(self, words: dict[str, int]) -> None:
        self._machine.set("state", np.array([words[name] for name in self._words], np.int32))
