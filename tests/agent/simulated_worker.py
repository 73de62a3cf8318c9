"""A worker whose processor is the simulator: a step takes the simulated time, for real, with noise."""

import sys
import time
from collections.abc import Sequence

import numpy as np

from amk.agent.device import worker
from amk.agent.device.wire import Block, Check, Load, PositionCheck, Slot
from amk.schedule_ir.schedule import Schedule
from amk.simulator.predict import Simulator

NOISE = 0.003


class SimulatedRig:
    def __init__(self) -> None:
        self.schedules: dict[Slot, Schedule] = {}
        self.times: dict[tuple[str, int], float] = {}
        self.keys: dict[Slot, str] = {}
        self.rng = np.random.default_rng()

    def open(self) -> str:
        return "simulated processor"

    def load(self, question: Load) -> None:
        self.schedules[question.slot] = Schedule.model_validate_json(question.schedule)
        self.keys[question.slot] = question.key

    def check(self, question: Check) -> Sequence[PositionCheck]:
        return [
            PositionCheck(pos=p, error=0.01, oracle_error=0.01, finite=True, repeated=True) for p in question.positions
        ]

    def step_ms(self, slot: Slot, pos: int) -> float:
        place = self.keys[slot], pos
        if place not in self.times:
            self.times[place] = Simulator().step_ms(self.schedules[slot], pos)
        return self.times[place]

    def block(self, question: Block) -> tuple[Sequence[Sequence[float]], int]:
        clean = [self.step_ms(question.slot, p) for p in question.positions]
        factors = 1 + NOISE * np.abs(self.rng.standard_normal((len(clean), question.steps)))
        times = [[ms * float(f) for f in row] for ms, row in zip(clean, factors, strict=True)]
        time.sleep(sum(map(sum, times)) / 1e3)
        return times, question.steps * len(clean)

    def canary(self) -> bool:
        return True

    def abort(self) -> None:
        """A simulated step cannot hang."""


if __name__ == "__main__":
    worker.serve(SimulatedRig(), sys.argv[1:])
