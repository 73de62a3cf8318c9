"""A schedule's compiled kernel in the emulator, with the interface that texts ask of an engine.

Cost: some million instructions a second, so a token of a tiny model takes a second and one of SmolLM2 about an hour.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from amk.emulator.decode import EmulatedEngine
from amk.emulator.machine.machine import Limits
from amk.engine.backends.request import TextEngine, slice_buffers, slice_result
from amk.lowering.kernel import build
from amk.models.row_groups import TensorSource
from amk.report.diagnostic import AmkError, Diagnostic, Exit, shown
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import F32
from amk.weights.quantised import Quantiser, nearest

UNLIMITED = Limits(instructions=1 << 62, seconds=1e9)
"""A text takes as long as it takes; whoever asked for it can cancel between tokens."""
MOST_FAULTS = 5


class EmulatorEngine(TextEngine):
    """The kernel of a SAFE schedule. AMK806 without numba, AMK605 without a compiler."""

    def __init__(
        self, schedule: Schedule, source: TensorSource, quantise: Quantiser = nearest, limits: Limits = UNLIMITED
    ) -> None:
        if importlib.util.find_spec("numba") is None:
            raise AmkError(Diagnostic("AMK806", "numba is not installed"), Exit.INPUT)
        self.schedule = schedule
        self._engine = EmulatedEngine(schedule, source, build(schedule).compiled.ptx, limits=limits, quantise=quantise)

    def _begin(
        self, buffers: Mapping[str, NDArray[np.int32]], state: Mapping[str, int], lengths: Sequence[int]
    ) -> None:
        self._engine.write(buffers)
        self._engine.set_state(**state)

    def step(self, tokens: int) -> NDArray[np.int32]:
        """Run `tokens` tokens and return those that were given or chosen. AMK804 if the kernel did what no correct
        kernel does, AMK803 at a limit, AMK014 for a launch that leaves the context."""
        self._run(tokens)
        return self._engine.output(tokens)

    def through(self, hidden: F32, position: int) -> F32:
        """A slice for one token: the hidden state or the logits that it makes of a hidden state. Raises what `step`
        does."""
        self._engine.write(slice_buffers(self.schedule, hidden, position))
        self._run(1)
        name, count = slice_result(self.schedule)
        return np.asarray(self._engine.machine.read(name, np.float32, count), np.float32)

    def _run(self, tokens: int) -> None:
        self._launches(tokens)
        outcome = self._engine.launch(tokens)
        if outcome.faults or not outcome.ended:
            faults = tuple(shown(str(fault)) for fault in outcome.faults[:MOST_FAULTS])
            if outcome.faults and all(fault.kind == "limit" for fault in outcome.faults):
                raise AmkError(Diagnostic("AMK803", outcome.faults[0].message), Exit.UNKNOWN)
            raise AmkError(Diagnostic("AMK804", f"{len(outcome.faults)} faults", facts=faults), Exit.UNSAFE)

    def logits(self, row: int | None = None) -> F32:
        """f32 [vocab] of the last token that ran, [rows, vocab] where a step reads several rows; row: of that one."""
        found = self._engine.logits()
        return found if row is None else found[row]

    def free(self) -> None:
        """Nothing is held outside the process."""
