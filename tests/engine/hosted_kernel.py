"""A run of a schedule by the engine of the GPU: its host code as it is, its launches in the emulator.

It runs what `amk.judges.emulated_run` does not: when the engine starts its epochs again, and what it clears then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.emulator.decode import EmulatedEngine
from amk.emulator.machine.machine import Order
from amk.emulator.steps import COUNTERS
from amk.engine.backends import cuda_engine
from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.load import gpu_engine
from amk.judges.emulated_run import LIMITS
from amk.judges.forward import Rows
from amk.judges.request import Broken, Refused, Request, Shown, state_of
from amk.judges.weights import RandomWeights
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.weights.quantised import nearest
from tests.emulator.host_driver import HostDriver, HostModules, host_device

ORDERS = {"late-copies": Order(), "early-copies": Order(eager=True), "priorities:1": Order(seed=1)}


class HostedKernel:
    """A `judge.Machine` for texts from position 0 on.

    printed: the PTX of a schedule. changed: what a test breaks in an engine before its first launch. restarts: how
    often epochs began again in the last run.
    """

    def __init__(
        self, printed: Callable[[Schedule], str], changed: Callable[[CudaEngine], None] = lambda engine: None
    ) -> None:
        self._printed, self._changed, self.restarts = printed, changed, 0

    def __call__(
        self, schedule: Schedule, weights: RandomWeights, request: Request, order: str, before: Sequence[Rows] | None
    ) -> Shown:
        if before is not None:
            raise Refused("the text begins behind others")
        with pytest.MonkeyPatch.context() as patch:
            return self._shown(patch, schedule, weights, request, order)

    def _shown(
        self, patch: pytest.MonkeyPatch, schedule: Schedule, weights: RandomWeights, request: Request, order: str
    ) -> Shown:
        engine, grid = hosted(patch, schedule, weights, self._printed(schedule), order)
        drawn = [Sampling(d.temperature, d.top_k, d.top_p, d.seed) for d in request.drawings]
        drawn = drawn if mode_of(schedule) != "greedy" else [GREEDY] * schedule.batch
        engine.request_batch(request.written, request.ends, drawn, prompt_length=len(request.texts[0]))
        self._changed(engine)
        shown, done = Shown(), 0
        for count in request.launches:
            shown.tokens.append(engine.step(count).astype(np.int64).reshape(count, schedule.vectors))
            done += count
            words = state_of(np.array(list(engine.state().values())), schedule.batch)
            if words["epoch"] == engine.epoch:  # the host's count; the judge knows the tokens since the text began
                words["epoch"] = done
            shown.state.append(words)
            if not schedule.headless:
                logits = engine.logits().astype(np.float64).reshape(schedule.vectors, -1)
                shown.logits.append(logits[:, : schedule.model.vocab])
        self.restarts = sum(now <= last for last, now in zip(grid.epochs, grid.epochs[1:], strict=False))
        return shown


def hosted(
    patch: pytest.MonkeyPatch, schedule: Schedule, weights: RandomWeights, ptx: str, order: str
) -> tuple[CudaEngine, Grid]:
    """The engine before its first text, in the memory of the host, and the grid that its launches run."""
    driver = HostDriver()
    grid = Grid(driver, EmulatedEngine(schedule, weights, ptx, limits=LIMITS, races=True), order)
    admitted = SimpleNamespace(schedule=schedule, loadable=bytes)
    patch.setattr("amk.engine.admission.admission.started", lambda _: admitted)
    patch.setattr("amk.lowering.launch.Device.open", lambda: host_device(driver))
    patch.setattr(cuda_engine, "Module", HostModules())
    patch.setattr(cuda_engine, "check_loaded", lambda *_: None)
    patch.setattr(cuda_engine, "CooperativeLaunch", lambda *_: grid)
    engine = gpu_engine(schedule, weights, nearest)
    grid.engine = engine
    return engine, grid


class Grid:
    """What a launch calls: memory that the host changed goes to the emulator, the kernel runs, and its memory comes
    back. epochs: of the launches."""

    engine: CudaEngine

    def __init__(self, driver: HostDriver, emulated: EmulatedEngine, order: str) -> None:
        self._driver, self._emulated, self._order = driver, emulated, order
        self._last: dict[str, NDArray[np.uint8]] = {}
        self.epochs: list[int] = []

    def __call__(self, argument: NDArray[Any], _stream: Any) -> None:
        self._driver.make_copies()
        machine, places = self._emulated.machine, self._places()
        for name, (address, size) in places.items():
            there = self._driver.held[address][:size]
            if not np.array_equal(there, self._last.get(name, self._unwritten(name, size))):
                machine.write(name, there)
        self.epochs.append(self._emulated.state()["epoch"])
        outcome = self._emulated.launch(int(argument["tokens"]), ORDERS[self._order])
        if outcome.faults or not outcome.ended:
            kind = outcome.faults[0].kind if outcome.faults else "hang"
            message = str(outcome.faults[0]) if outcome.faults else "did not end"
            raise Broken(kind, f"epoch {self.epochs[-1]}: {message}")
        for name, (address, size) in places.items():
            self._last[name] = machine.read(name, np.uint8, size).view(np.uint8)
            self._driver.held[address][:size] = self._last[name]

    def _places(self) -> dict[str, tuple[int, int]]:
        """Address and bytes of what a launch may touch, but for the log and the word that stops it."""
        sizes = {b.name: b.bytes for b in self._emulated.schedule.buffers if b.space == "global"}
        found = {name: (self.engine.buffers[name].address, size) for name, size in sizes.items()}
        return found | {COUNTERS: (self.engine.counters.address, self.engine.abi.counter_bytes)}

    def _unwritten(self, name: str, size: int) -> NDArray[np.uint8]:
        """What the engine's poison is; where it lies, the emulator's memory stays undefined."""
        role = self._emulated.buffers[name].role if name in self._emulated.buffers else "state"
        return np.full(size if role == "scratch" else 0, 0xFF, np.uint8)
