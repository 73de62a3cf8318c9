"""A schedule on the interpreter, with the interface of the GPU engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.schedule_ir.interpret import Copies, Machine
from amk.schedule_ir.machine.memory import Numerics
from amk.schedule_ir.machine.order import Order, RoundRobin
from amk.schedule_ir.ops.begin import STATE
from amk.schedule_ir.ops.select import REQUEST
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
        self._set_state(dict.fromkeys(STATE, 0))

    def request(self, prompt: list[int], eos: tuple[int, ...] = (), sampling: Sampling = GREEDY) -> None:
        """Start a text: the prompt is fed token by token, then tokens are chosen; the position starts over.

        AMK015 if the schedule cannot choose tokens as `sampling` says.
        """
        require(mode_of(self.schedule), sampling)
        if mode_of(self.schedule) != "greedy":
            self._machine.set("sampling", sampling.words())
        words = np.full(len(REQUEST), -1, np.int32)
        words[0] = len(prompt)
        words[1 : 1 + len(eos[: len(REQUEST) - 1])] = eos[: len(REQUEST) - 1]
        padded = np.zeros(self.schedule.kv.context, np.int32)
        padded[: len(prompt)] = prompt
        self._machine.set("request", words)
        self._machine.set("prompt", padded)
        self._set_state(self.state() | {"token": prompt[0], "pos": 0, "done": 0})

    def step(self, tokens: int) -> NDArray[np.int32]:
        """Run `tokens` tokens and return those that were given or chosen. Raises Fault."""
        self._machine.launch(tokens, self._order())
        output: NDArray[np.int32] = self._machine.get("output")[:tokens]
        return output

    def state(self) -> dict[str, int]:
        return dict(zip(STATE, self._machine.get("state").tolist(), strict=True))

    def logits(self) -> NDArray[np.float32]:
        """f32 [vocab] of the last token that ran."""
        return self._machine.get("logits")

    @property
    def events(self) -> int:
        """Events executed so far, copies included."""
        return self._machine.events

    def free(self) -> None:
        """Nothing is held outside the process."""

    def _set_state(self, words: dict[str, int]) -> None:
        self._machine.set("state", np.array([words[name] for name in STATE], np.int32))
