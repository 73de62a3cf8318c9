"""Few layers for many: two iterations of each layer loop stand for all if nothing in it can tell them apart.

Layer loops are the same in all programs; inside them each counter index and each op's layer moves with l by itself,
nothing else does, every layer has its counters, and no counter is used in two loops or outside too; chunks change
between loops. Outside, steps name layer 0 and the last norm, or none. With one loop whatever goes wrong goes wrong
within two neighbouring layers, or behind them. Behind them the last norm is that of fewer layers. Whatever few
iterations order more iterations order too, as every agent runs them one after the other: what is accepted short is
right whole.
"""

from __future__ import annotations

from typing import Any, Final

from amk.schedule_ir.expr import coefficient, symbols
from amk.schedule_ir.schedule import Loop, Node, Program, Schedule, Step

KEPT: Final = 2
FACTOR: Final = {"layer": 1, "index": 2}
"""By what a layer, and a norm's index, moves with l."""
OWN: Final = {"layer": (0,), "index": (1, 2)}


def short(schedule: Schedule) -> Schedule:
    """The schedule with two iterations of each layer loop, or as it is where that does not say the same."""
    layered = [[n for n in token.body if isinstance(n, Loop)] for p in schedule.programs for token in _loops(p)]
    counts = [loop.count or 1 for loop in layered[0]]
    kept = [min(KEPT, count) for count in counts]
    starts = [sum(counts[:n]) for n in range(len(counts))]
    places = {start: sum(kept[:n]) for n, start in enumerate(starts)}
    alike = all([loop.count for loop in loops] == counts for loops in layered)
    alike &= {change.first for stream in schedule.streams for change in stream.later} <= set(starts)
    if not alike or sum(counts) != schedule.model.layers or kept == counts or not _regular(schedule, starts, counts):
        return schedule

    def cut(node: Node, n: int) -> Node:
        """Loop n, its layers as many earlier as fewer lie before it."""
        assert isinstance(node, Loop)
        body = tuple(_earlier(step, starts[n] - places[starts[n]]) for step in node.body)
        return node.model_copy(update={"count": kept[n], "body": body})

    def last(step: Step) -> Step:
        """With the last norm as it is numbered in the short schedule."""
        if dict(step.op).get("index") != FACTOR["index"] * sum(counts):
            return step
        return step.model_copy(update={"op": step.op.model_copy(update={"index": FACTOR["index"] * sum(kept)})})

    programs = []
    for program in schedule.programs:
        (token,), left = _loops(program), iter(range(len(counts)))
        inside = tuple(last(node) if isinstance(node, Step) else cut(node, next(left)) for node in token.body)
        body = (node if isinstance(node, Step) else node.model_copy(update={"body": inside}) for node in program.body)
        programs.append(program.model_copy(update={"body": tuple(body)}))
    later = [tuple(c.model_copy(update={"first": places[c.first]}) for c in s.later) for s in schedule.streams]
    streams = (s.model_copy(update={"later": moved}) for s, moved in zip(schedule.streams, later, strict=True))
    model = schedule.model.model_copy(update={"layers": sum(kept)})
    return schedule.model_copy(update={"model": model, "programs": tuple(programs), "streams": tuple(streams)})


def _loops(program: Program) -> list[Loop]:
    return [node for node in program.body if isinstance(node, Loop)]


def _regular(schedule: Schedule, starts: list[int], counts: list[int]) -> bool:
    uses: dict[str, set[Any]] = {}
    fixed = {"layer": 0, "index": FACTOR["index"] * sum(counts)}
    for program in schedule.programs:
        (token,), left = _loops(program), iter(range(len(starts)))
        for node in (*program.body, *token.body):
            loop = next(left) if isinstance(node, Loop) and node.var == "l" else None
            steps = node.body if isinstance(node, Loop) and loop is not None else (node,)
            for step in (n for n in steps if isinstance(n, Step)):
                start = starts[loop] if loop is not None and len(starts) > 1 else None
                if not _op_moves(step, loop is not None, start, fixed) or not _counters_move(step, loop, uses):
                    return False
    shape = {counter.name: counter.shape for counter in schedule.counters}
    return all(len(ways) == 1 and _has_instances(shape[name], counts, *ways) for name, ways in uses.items())


def _has_instances(shape: tuple[int, ...], counts: list[int], use: tuple[Any, ...]) -> bool:
    """Whether the counter has an instance for every layer that the use is in."""
    loop, *moves = use
    own = [(size, first) for size, (factor, first) in zip(shape, moves, strict=True) if factor]
    return all(first >= 0 and first + counts[loop] <= size for size, first in own)


def _op_moves(step: Step, inside: bool, start: int | None, fixed: dict[str, int]) -> bool:
    """start: the layers before the loop, if there are several loops; then constants are of the loop's own layers.
    fixed: what may be named outside."""
    for name, expr in step.op:
        factor = FACTOR.get(name, 0) * inside
        if not inside and name in fixed and expr != fixed[name]:
            return False
        if isinstance(expr, dict) and (coefficient(expr, "l") != factor or (factor and set(expr) - {"l", "1"})):
            return False
        if isinstance(expr, int) and factor:
            return False
        if factor and start is not None and coefficient(expr, "1") - factor * start not in OWN[name]:
            return False
    return True


def _counters_move(step: Step, loop: int | None, uses: dict[str, set[Any]]) -> bool:
    """Each index has one dimension that is l plus a constant and nothing else inside the loop, none outside; amounts do
    not name l."""
    inside = loop is not None
    entries = [(w.counter, w.index, w.at_least) for w in step.waits]
    for counter, index, amount in entries + [(s.counter, s.index, s.add) for s in step.signals]:
        moves = [(coefficient(e, "l"), coefficient(e, "1") if coefficient(e, "l") else 0) for e in index]
        if coefficient(amount, "l") or sorted(m for m, _ in moves) != [0] * (len(moves) - inside) + [1] * inside:
            return False
        if any(coefficient(e, "l") and symbols(e) - {"l"} for e in index):
            return False
        uses.setdefault(counter, set()).add((loop, *moves))
    return True


def _earlier(node: Node, layers: int) -> Node:
    if isinstance(node, Loop) or not layers:
        return node
    moved = {
        n: {**e, "1": e.get("1", 0) - FACTOR[n] * layers} for n, e in node.op if n in FACTOR and isinstance(e, dict)
    }
    return node.model_copy(update={"op": node.op.model_copy(update=moved)}) if moved else node
