"""What single steps touch at one position, in the buffers of the flat system: those of the schedule, then the shared
memory of each worker. Rows are (buffer, lo, hi, kind, value, delta)."""

from __future__ import annotations

from typing import Final

import numpy as np

from amk.validator.program.contents import CACHED, code, with_token
from amk.validator.program.evaluator import SHARED
from amk.validator.program.footprint import Footprints
from amk.validator.program.slopes import FAMILY_SHIFT
from amk.validator.program.system import I64
from amk.validator.program.trace import Item, Trace

_TOKENLESS: Final = np.array([code(family, 0) >> FAMILY_SHIFT for family in CACHED])


def item_accesses(
    footprints: Footprints, trace: Trace, number: int, warp: int, workers: range, pos: int
) -> tuple[I64, I64]:
    """(worker [n], rows [n, 6]) of an item on one warp of consecutive workers, in a launch that starts at `pos`."""
    item = trace.items[number]
    agent = warp - trace.roles[item.step.op.role].start
    rows, counts = footprints.of_workers(
        item, agent, workers, [pos + footprints.schedule.rows * max(item.token, 0)] * len(workers)
    )
    worker = np.repeat(np.arange(workers.start, workers.stop), counts)
    return worker, _rows(footprints, item, worker, rows)


def warp_accesses(footprints: Footprints, trace: Trace, number: int, worker: int, pos: int) -> list[I64]:
    """The rows of an item on each warp that runs it."""
    item = trace.items[number]
    agents = range(len(trace.roles[item.step.op.role]))
    here = pos + footprints.schedule.rows * max(item.token, 0)
    each = [footprints.of(item, worker, agent, here) for agent in agents]
    rows = _rows(footprints, item, worker, np.concatenate(each))
    ends = np.cumsum([len(one) for one in each]).tolist()
    return [rows[end - len(one) : end] for one, end in zip(each, ends, strict=True)]


def _rows(footprints: Footprints, item: Item, worker: I64 | int, rows: I64) -> I64:
    """Footprints with the shared memory of their workers, and with the token in their values."""
    found = rows[:, [0, 2, 3, 1, 4, 5]]
    found[:, 0] = np.where(rows[:, 0] == SHARED, len(footprints.schedule.buffers) + worker, rows[:, 0])
    found[:, 4] = with_token(rows[:, 4], item.token, _TOKENLESS)
    return found
