"""Recordings made without a GPU: the logical run of a schedule in cycles, each SM with its own counter origin."""

from __future__ import annotations

import numpy as np

from amk.lowering.emit import trace_length
from amk.schedule_ir.schedule import Schedule
from amk.trace.logical import logical_run
from amk.trace.phases import token_items
from amk.trace.recording import Recording
from amk.trace.steps import Steps
from amk.validator.evidence.flat_system import expand

CYCLES = 1000
"""Cycles of one logical step."""


def synthetic_recording(schedule: Schedule, pos: int = 0, seed: int = 0) -> Recording:
    """Marks as the kernel would leave them if every logical step took `CYCLES` cycles and some noise."""
    flat = expand(schedule, pos, 1, "block", touching=())
    steps = Steps(schedule, flat.system, flat.traces)
    rng = np.random.default_rng(seed)
    run = logical_run(flat.system, steps.lengths() * rng.uniform(0.9, 1.3, flat.system.events))
    launch = schedule.launch
    marks = np.zeros((launch.workers, launch.warps, trace_length(schedule)), np.uint32)
    for worker in range(launch.workers):
        trace = steps.trace(worker)
        offset = int(rng.integers(0, 2**32))
        for warp in range(launch.warps):
            first, last = flat.system.agent_first[worker * launch.warps + warp :][:2].tolist()
            inside = [
                e for e in range(first, last) if trace.items[int(trace.item[int(flat.system.event_tag[e])])].token >= 0
            ]
            ends: dict[int, float] = {}
            for e in inside:
                ends[int(trace.item[int(flat.system.event_tag[e])])] = float(run.end[e])
            cycles = [float(run.ready[inside[0]]), *ends.values()]
            marks[worker, warp, : len(cycles)] = [(offset + round(c * CYCLES)) % 2**32 for c in cycles]
    assert len(token_items(schedule, 0)) >= marks.shape[2] - 1
    token_us = float(run.end[np.isfinite(run.end)].max()) * CYCLES / 1700
    return Recording.of(schedule, "synthetic numbers", pos, token_us, marks)
