"""Programs unrolled for the checker: items, local order of the warps of one worker, and few layers for many.

An item is one step with its loop variables, run by every warp of its role. Two tokens are unrolled; layers are reduced
to three if nothing in the loop can tell (conditions in `short`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from amk.schedule_ir.expr import coefficient
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step

I64 = npt.NDArray[np.int64]
KEPT: Final = 3
CREW: Final = -1
TOKENS: Final = 2
MAX_ITEMS: Final = 20_000


class Rejected(Exception):
    """Why the certificate proves nothing about the schedule."""


def require(condition: object, reason: str) -> None:
    if not condition:
        raise Rejected(reason)


@dataclass(frozen=True)
class Item:
    """One step as run. number: of the step in the program's text; token -1 outside the token loop."""

    step: Step
    number: int
    loops: dict[str, int]
    token: int


@dataclass(frozen=True, eq=False)
class Program:
    """roles[j]: warps that run item j. ahead [items, warps + 1, warps + 1]: at the start of item j on warp a, how many
    first items are over on warp b (items that b does not run count as over); a = CREW: on every warp that runs item j,
    b = CREW: over on all warps."""

    workers: range
    warps: int
    items: list[Item]
    roles: list[range]

    @cached_property
    def barrier(self) -> list[bool]:
        """Which items are barriers."""
        return [isinstance(item.step.op, BarrierOp) for item in self.items]

    @cached_property
    def ahead(self) -> I64:
        n, warps = len(self.items), self.warps
        follows = np.full((warps, n + 1), n, np.int64)
        for j in reversed(range(n)):
            follows[:, j] = follows[:, j + 1]
            follows[self.roles[j], j] = j
        state = np.zeros((warps, warps), np.int64)
        found = np.zeros((n, warps, warps), np.int64)
        for j, role in enumerate(self.roles):
            found[j] = state
            state[role, role] = j + 1
            if self.barrier[j]:
                state[role] = state[role].max(axis=0)
        over = np.empty((n, warps + 1, warps + 1), np.int64)
        over[:, :warps, :warps] = follows[np.arange(warps), found]
        for j, role in enumerate(self.roles):
            over[j, CREW, :warps] = over[j, role, :warps].min(axis=0)
        over[:, :, CREW] = over[:, :, :warps].min(axis=2)
        return over

    @cached_property
    def alone(self) -> I64:
        """[items] the earliest item from which on, up to item j, only warps of item j's role run anything."""
        since, found = dict.fromkeys(self.roles, 0), []
        for j, role in enumerate(self.roles):
            for other in since:
                if not set(role) <= set(other):
                    since[other] = j + 1
            found.append(since[role])
        return np.array(found, np.int64)


def programs_of(schedule: Schedule) -> list[Program]:
    """Rejects barriers that are not joined by exactly their role, and programs that do not partition the workers."""
    ranges = {r.name: range(r.first, r.first + r.count) for r in schedule.roles}
    found: list[Program] = []
    owner: dict[tuple[str, int], range] = {}
    for p in schedule.programs:
        items = list(_items(p.body, {}, iter(range(MAX_ITEMS)), {}))
        require(len(items) <= MAX_ITEMS, "program: too long")
        roles = [ranges[item.step.op.role] for item in items]
        for item, role in zip(items, roles, strict=True):
            require(_within_class(item.step), "class: synchronisation outside of it")
            require(role.stop <= schedule.launch.warps, "roles: more warps than a worker has")
            if isinstance(item.step.op, BarrierOp):
                require(item.step.op.agents == len(role), "barrier: not joined by exactly its role")
                require(owner.setdefault((p.name, item.step.op.id), role) == role, "barrier: an id with two roles")
        found.append(Program(range(p.first, p.first + p.count), schedule.launch.warps, items, roles))
    workers = sorted(w for p in found for w in p.workers)
    require(workers == list(range(schedule.launch.workers)), "programs: not a partition of the workers")
    return found


def _within_class(step: Step) -> bool:
    plain = all(w.compare == ">=" and w.data is None and w.touch == "strong" for w in step.waits) and all(
        s.action == "add" and s.touch == "strong" for s in step.signals
    )
    plain &= step.stores == "plain" and (not isinstance(step.op, BarrierOp) or step.op.kind == "sync")
    return plain and step.when is None and not step.takes and not step.gives


def _items(
    body: tuple[Node, ...], loops: dict[str, int], fresh: Iterator[int], known: dict[int, int]
) -> Iterator[Item]:
    for node in body:
        if isinstance(node, Step):
            number = known.setdefault(id(node), len(known))
            require(next(fresh, None) is not None, "program: too long")
            yield Item(node, number, loops, loops.get("t", -1))
            continue
        require(node.var not in loops and (node.var == "t") == (node.count is None), "loops: not tokens, then layers")
        for k in range(TOKENS if node.count is None else node.count):
            inner = {"t": k, "n": k} if node.var == "t" else {node.var: k}
            yield from _items(node.body, loops | inner, fresh, known)


def short(schedule: Schedule) -> Schedule:
    """The schedule with three iterations of each layer loop, if iterations are equal up to renaming: layer loops lie
    directly in the token loop, the same in all programs; inside them each counter index and each op's layer moves with
    l by itself, nothing else does, and no counter is used in two loops or outside too; chunks change between loops.
    With one loop whatever goes wrong goes wrong within three neighbouring layers. With several, whatever three
    iterations order more iterations order too, as every agent runs them one after the other: what is accepted short is
    right whole."""
    found = {tuple(_counts(p.body)) for p in schedule.programs}
    counts = found.pop() if len(found) == 1 else ()
    starts = [sum(counts[:n]) for n in range(len(counts))]
    kept = [min(KEPT, count) for count in counts]
    places = {start: sum(kept[:n]) for n, start in enumerate(starts)}
    changes = {change.first for stream in schedule.streams for change in stream.later}
    if found or sum(counts) != schedule.model.layers or sum(kept) == sum(counts) or not changes <= set(starts):
        return schedule
    uses: dict[str, set[Any]] = {}
    for program in schedule.programs:
        for step, loop in _steps(program.body):
            start = starts[loop] if loop is not None and len(counts) > 1 else None
            if not _moves_by_layer(step, loop is not None, start) or not _indexed_by_layer(step, loop, uses):
                return schedule
    if any(len(shapes) > 1 for shapes in uses.values()):
        return schedule
    moved = [start - places[start] for start in starts]
    bodies = (p.model_copy(update={"body": _cut(p.body, kept, moved)}) for p in schedule.programs)
    model = schedule.model.model_copy(update={"layers": sum(kept)})
    streams = tuple(
        s.model_copy(update={"later": tuple(c.model_copy(update={"first": places[c.first]}) for c in s.later)})
        for s in schedule.streams
    )
    return schedule.model_copy(update={"model": model, "programs": tuple(bodies), "streams": streams})


def _counts(body: tuple[Node, ...]) -> list[int]:
    """Iterations of each layer loop; [0] if there are loops elsewhere."""
    tokens = [n for n in body if isinstance(n, Loop)]
    inner = [n for t in tokens for n in t.body if isinstance(n, Loop)]
    nested = any(isinstance(n, Loop) for loop in inner for n in loop.body)
    fine = [t.var for t in tokens] == ["t"] and all(n.var == "l" for n in inner) and not nested
    return [n.count or 0 for n in inner] if fine else [0]


def _moves_by_layer(step: Step, inside: bool, start: int | None) -> bool:
    """The op's layer (norm index) is l (2 l) plus a constant inside the loop; nothing else of it names l.

    start: the layers before the loop, if there are several loops; then the constant is that (twice that plus 1 or 2).
    """
    for name, expr in step.op:
        factor = {"layer": 1, "index": 2}.get(name, 0) * inside
        if isinstance(expr, dict) and (coefficient(expr, "l") != factor or (factor and set(expr) - {"l", "1"})):
            return False
        if isinstance(expr, int) and factor:
            return False
        if factor and start is not None and coefficient(expr, "1") - factor * start not in ((0,), (1, 2))[factor - 1]:
            return False
    return True


def _indexed_by_layer(step: Step, loop: int | None, uses: dict[str, set[Any]]) -> bool:
    """Each counter index has one dimension l plus a constant inside the loop, none outside; amounts do not name l."""
    inside = loop is not None
    entries = [(w.counter, w.index, w.at_least) for w in step.waits] + [
        (s.counter, s.index, s.add) for s in step.signals
    ]
    for counter, index, amount in entries:
        moves = [(coefficient(e, "l"), coefficient(e, "1") if coefficient(e, "l") else 0) for e in index]
        if coefficient(amount, "l") or sorted(m for m, _ in moves) != [0] * (len(moves) - inside) + [1] * inside:
            return False
        uses.setdefault(counter, set()).add((loop, *moves))
    return True


def _steps(body: tuple[Node, ...]) -> Iterator[tuple[Step, int | None]]:
    """Every step with the number of its layer loop."""
    loops = 0
    for node in body:
        if isinstance(node, Step):
            yield node, None
            continue
        for inner in node.body:
            if isinstance(inner, Step):
                yield inner, None
                continue
            yield from ((step, loops) for step in inner.body if isinstance(step, Step))
            loops += 1


def _cut(body: tuple[Node, ...], kept: list[int], moved: list[int]) -> tuple[Node, ...]:
    """The layer loops, in their order, with `kept` iterations of layers that lie `moved` earlier."""
    left = iter(zip(kept, moved, strict=True))

    def cut(loop: Loop) -> Loop:
        count, by = next(left)
        return loop.model_copy(update={"count": count, "body": tuple(_earlier(n, by) for n in loop.body)})

    def token(node: Node) -> Node:
        if isinstance(node, Step):
            return node
        return node.model_copy(update={"body": tuple(n if isinstance(n, Step) else cut(n) for n in node.body)})

    return tuple(token(node) for node in body)


def _earlier(node: Node, layers: int) -> Node:
    if isinstance(node, Loop) or not layers:
        return node
    changed = {
        name: {**expr, "1": expr.get("1", 0) - factor * layers}
        for name, factor in (("layer", 1), ("index", 2))
        if isinstance(expr := getattr(node.op, name, None), dict)
    }
    return node.model_copy(update={"op": node.op.model_copy(update=changed)}) if changed else node
