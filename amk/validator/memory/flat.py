"""The verdict on a flat system: liveness, order, races and reads-from in one call.

Property: SAFE means that every interleaving executes every event, no two conflicting events are ever enabled together,
and every byte read or required at the end has the value the dataflow intends. The class is decidable, so there is no
UNKNOWN here; systems whose clocks do not fit in memory raise `ClocksTooLarge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from amk.validator.memory.races import BLOCK, DataflowReport, RaceReport, blocks, find_faults, find_races, touches_of
from amk.validator.order.clocks import Clocks, must_clocks
from amk.validator.order.greedy_run import Deadlock, Run, diagnose, greedy
from amk.validator.program.system import System

KEPT: Final = 1 << 23


@dataclass(frozen=True, eq=False)
class Judgement:
    """Evidence for one system; races and faults of a deadlocking system concern the events that can run."""

    run: Run
    deadlock: Deadlock | None
    clocks: Clocks
    races: RaceReport
    dataflow: DataflowReport

    @property
    def safe(self) -> bool:
        return self.deadlock is None and not self.races.racy and self.dataflow.correct


def judge(system: System, limit: int | None = 64, block: int = BLOCK) -> Judgement:
    """Decide; list at most ``limit`` races and faults."""
    run = greedy(system)
    clocks = must_clocks(run)
    touches = touches_of(run)
    # beyond the limit the blocks are made twice rather than kept, to bound the memory
    kept = list(blocks(touches, block)) if touches.incidences <= KEPT else None
    return Judgement(
        run=run,
        deadlock=diagnose(run),
        clocks=clocks,
        races=find_races(kept if kept is not None else blocks(touches, block), clocks, limit),
        dataflow=find_faults(kept if kept is not None else blocks(touches, block), limit),
    )
