"""What a schedule says besides who waits for whom.

Most of a verdict follows from ops, buffers and tables alone. Stages that are given `without_sync` cannot see waits,
signals and counters, so a change of those leaves their results as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Node, Program, Schedule, Step


def without_sync(schedule: Schedule) -> Schedule:
    """The schedule without name, counters, waits and signals; steps keep their places."""
    programs = tuple(bare_program(p) for p in schedule.programs)
    return schedule.model_copy(update={"name": "data", "plan": "custom", "counters": (), "programs": programs})


def without_rings(schedule: Schedule) -> Schedule:
    """The schedule with rings of one slot: how far copies run ahead is the business of `rings` alone."""
    streams = tuple(s.model_copy(update={"slots": 1}) for s in schedule.streams)
    return schedule.model_copy(update={"streams": streams})


def streams_only(schedule: Schedule) -> Schedule:
    """Of a schedule without waits and signals, what says in which order weights are streamed: products and refills,
    and no buffer but those with weights. Steps do not keep their places.
    """
    programs = tuple(p.model_copy(update={"body": tuple(_streaming(p.body))}) for p in schedule.programs)
    sources = {stream.source for stream in schedule.streams}
    buffers = tuple(b for b in schedule.buffers if b.name in sources)
    return schedule.model_copy(update={"programs": programs, "buffers": buffers})


def _streaming(body: tuple[Node, ...]) -> Iterator[Node]:
    for node in body:
        if not isinstance(node, Step):
            yield node.model_copy(update={"body": tuple(_streaming(node.body))})
        elif isinstance(node.op, GemvOp | RefillOp):
            yield node


def bare_program(program: Program) -> Program:
    return program.model_copy(update={"body": tuple(_bare(program.body))})


def _bare(body: tuple[Node, ...]) -> Iterator[Node]:
    for node in body:
        if isinstance(node, Step):
            yield node.model_copy(update={"waits": (), "signals": ()}) if node.waits or node.signals else node
        else:
            yield node.model_copy(update={"body": tuple(_bare(node.body))})
