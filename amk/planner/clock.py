"""Simulated times of plans at several positions at once, with a process for each position."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from amk.planner.search import Problem
from amk.processes import process_pool
from amk.schedule_ir.schedule import Schedule
from amk.simulator.predict import step_ms

ALONE = 8
"""Schedules that are timed by this process, before others are worth their start."""


class Clock(AbstractContextManager["Clock"]):
    """What `Problem.times` gives, sooner where there are cores: the first position is timed here, others elsewhere."""

    def __init__(self, problem: Problem, cores: int | None = None, alone: int = ALONE) -> None:
        """cores: those of this process unless given."""
        self.problem = problem
        usable = len(os.sched_getaffinity(0)) if cores is None else cores
        self.helpers = min(usable, len(problem.positions)) - 1
        self.alone = alone
        self.pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def __call__(self, schedule: Schedule) -> tuple[float, ...]:
        """Simulated ms per token at each position. AmkError if the schedule gets stuck."""
        self.alone -= 1
        if self.helpers < 1 or self.alone >= 0:
            return self.problem.times(schedule)
        if self.pool is None:
            self.pool = process_pool(self.helpers)
        first, *others = self.problem.places(schedule)
        constants = self.problem.constants
        awaited = [self.pool.submit(step_ms, schedule, pos, constants) for pos in others]
        return step_ms(schedule, first, constants), *(found.result() for found in awaited)
