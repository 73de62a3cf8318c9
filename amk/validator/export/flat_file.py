"""The flat system of a small schedule as a file that other tools can judge: see `system-format.md`.

Three systems differ in what orders: `block` (everything that can block, hints included), `word` (fenced counters and
flag words), `fence` (fenced counters only). Without hints, relaxed operations and flag words they are one, and the
file then holds it once.
"""

from __future__ import annotations

from typing import Any, Final

from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Node, Program, Schedule, Step
from amk.validator.evidence.flat_system import Flat, expand
from amk.validator.order.two_levels import Edges

FORMAT: Final = "amk.flat/1"
EDGES: Final[tuple[Edges, ...]] = ("block", "word", "fence")


def flat_file(schedule: Schedule, pos: int, tokens: int) -> dict[str, Any]:
    """Plain JSON. Raises `TooLarge`, or `NotComposable` where flag words are no valid hand-off."""
    systems = {edges: expand(schedule, pos, tokens, edges) for edges in EDGES}
    first = systems["block"]
    differ = len({flat.system.digest for flat in systems.values()}) > 1
    kept = EDGES if differ else EDGES[:1]
    return {
        "format": FORMAT,
        "schedule": schedule_hash(schedule),
        "pos": pos,
        "tokens": tokens,
        "loops": [_program(program) for program in schedule.programs],
        "steps": [_steps(first, number) for number in range(len(first.traces))],
        "tagged": [i for i, b in enumerate(schedule.buffers) if b.tagged],
        "private": list(range(len(schedule.buffers), len(first.system.buffer_names))),
        "systems": {edges: systems[edges].system.to_json() for edges in kept},
    }


def _program(program: Program) -> dict[str, Any]:
    return {"program": program.name, "workers": [program.first, program.count], "body": _loops(program.body)}


def _loops(body: tuple[Node, ...]) -> list[Any]:
    """Ops by name, loops as [variable, count or null for the tokens, body]."""
    return [node.op.op if isinstance(node, Step) else [node.var, node.count, _loops(node.body)] for node in body]


def _steps(flat: Flat, number: int) -> list[list[Any]]:
    """Per local event (the event_tag of the system): [JSON pointer of its step, loop variables, warp]."""
    trace = flat.traces[number]
    places = ("/" + "/".join(map(str, item.site.path)) for item in trace.items)
    pointers = list(places)
    return [
        [pointers[i], {k: v for k, v in trace.items[i].loops.items() if k in "tl"}, int(warp)]
        for i, warp in zip(trace.item.tolist(), trace.warp_of.tolist(), strict=True)
    ]
