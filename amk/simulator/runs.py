"""A schedule with several layer loops, as schedules with one.

The layers of one loop repeat; those of different loops differ in their weights. Each loop is timed as if all layers
were its own, and counts by its share of the layers. What happens at the seam of two loops is not simulated.
"""

from __future__ import annotations

from amk.schedule_ir.expr import Expr
from amk.schedule_ir.memory import Counter, Stream
from amk.schedule_ir.schedule import Loop, Node, Program, Schedule, Step, steps_of


def runs(schedule: Schedule) -> tuple[tuple[float, Schedule], ...]:
    """(share of the layers, a schedule of which all layers are those of one loop); itself if it has one loop."""
    loops = _layer_loops(schedule.programs[0])
    if len(loops) < 2:
        return ((1.0, schedule),)
    counts = [loop.count or 1 for loop in loops]
    return tuple((count / sum(counts), _alone(schedule, n, counts)) for n, count in enumerate(counts))


def _layer_loops(program: Program) -> list[Loop]:
    return [n for token in program.body if isinstance(token, Loop) for n in token.body if isinstance(n, Loop)]


def _alone(schedule: Schedule, number: int, counts: list[int]) -> Schedule:
    """All layers in loop `number`."""
    layers, first = sum(counts), sum(counts[:number])
    steps = [step for program in schedule.programs for step in steps_of(_layer_loops(program)[number].body)]
    used = {wait.counter for step in steps for wait in step.waits}
    used |= {signal.counter for step in steps for signal in step.signals}
    return schedule.model_copy(
        update={
            "programs": tuple(_only(p, number, layers, first) for p in schedule.programs),
            "counters": tuple(_long(c, layers) if c.name in used else c for c in schedule.counters),
            "streams": tuple(_uniform(s, first) for s in schedule.streams),
        }
    )


def _only(program: Program, number: int, layers: int, first: int) -> Program:
    loop = _layer_loops(program)[number]
    body = tuple(_from_zero(n, first) if isinstance(n, Step) else n for n in loop.body)
    whole = loop.model_copy(update={"count": layers, "body": body})
    others = [other for other in _layer_loops(program) if other is not loop]

    def token(node: Node) -> Node:
        if isinstance(node, Step):
            return node
        kept = (n for n in node.body if all(n is not other for other in others))
        return node.model_copy(update={"body": tuple(whole if n is loop else n for n in kept)})

    return program.model_copy(update={"body": tuple(token(node) for node in program.body)})


def _from_zero(step: Step, first: int) -> Step:
    """The step for layers that are counted from the loop's first."""
    fields: dict[str, Expr] = {}
    for field, factor in (("layer", 1), ("index", 2)):
        expr = getattr(step.op, field, None)
        if isinstance(expr, dict):
            fields[field] = expr | {"1": expr.get("1", 0) - factor * first}
    return step.model_copy(update={"op": step.op.model_copy(update=fields)}) if fields else step


def _long(counter: Counter, layers: int) -> Counter:
    return counter.model_copy(update={"shape": (layers, *counter.shape[1:])})


def _uniform(stream: Stream, layer: int) -> Stream:
    """All layers have the chunks of this one."""
    named = {name for change in stream.later for name in change.chunks}
    chunks = stream.chunks | {name: stream.chunk(name, layer) for name in named}
    return stream.model_copy(update={"chunks": chunks, "later": ()})
