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
    """The schedule with three layers, if iterations of the layer loop are equal up to renaming: one layer loop directly
    in the token loop; inside it each counter index and each op's layer moves with l by itself, nothing else does, and
    no counter is used both inside and outside. Then whatever goes wrong goes wrong within three neighbouring layers."""
    if schedule.model.layers <= KEPT or not all(_uniform(p.body, schedule.model.layers) for p in schedule.programs):
        return schedule
    uses: dict[str, set[Any]] = {}
    for program in schedule.programs:
        for step, inside in _steps(program.body, False):
            if not _moves_by_layer(step, inside) or not _indexed_by_layer(step, inside, uses):
                return schedule
    if any(len(shapes) > 1 for shapes in uses.values()):
        return schedule
    bodies = (p.model_copy(update={"body": _cut(p.body)}) for p in schedule.programs)
    model = schedule.model.model_copy(update={"layers": KEPT})
    return schedule.model_copy(update={"model": model, "programs": tuple(bodies)})


def _moves_by_layer(step: Step, inside: bool) -> bool:
    """The op's layer (norm index) is l (2 l) plus a constant inside the loop; nothing else of it names l."""
    for name, expr in step.op:
        factor = {"layer": 1, "index": 2}.get(name, 0) * inside
        if isinstance(expr, dict) and (coefficient(expr, "l") != factor or (factor and set(expr) - {"l", "1"})):
            return False
        if isinstance(expr, int) and factor:
            return False
    return True


def _indexed_by_layer(step: Step, inside: bool, uses: dict[str, set[Any]]) -> bool:
    """Each counter index has one dimension l plus a constant inside the loop, none outside; amounts do not name l."""
    entries = [(w.counter, w.index, w.at_least) for w in step.waits] + [
        (s.counter, s.index, s.add) for s in step.signals
    ]
    for counter, index, amount in entries:
        moves = [(coefficient(e, "l"), coefficient(e, "1") if coefficient(e, "l") else 0) for e in index]
        if coefficient(amount, "l") or sorted(m for m, _ in moves) != [0] * (len(moves) - inside) + [1] * inside:
            return False
        uses.setdefault(counter, set()).add(tuple(moves))
    return True


def _uniform(body: tuple[Node, ...], layers: int) -> bool:
    tokens = [n for n in body if isinstance(n, Loop)]
    inner = [n for t in tokens for n in t.body if isinstance(n, Loop)]
    nested = any(isinstance(n, Loop) for loop in inner for n in loop.body)
    return [t.var for t in tokens] == ["t"] and [(n.var, n.count) for n in inner] == [("l", layers)] and not nested


def _steps(body: tuple[Node, ...], inside: bool) -> Iterator[tuple[Step, bool]]:
    for node in body:
        if isinstance(node, Step):
            yield node, inside
        else:
            yield from _steps(node.body, inside or node.var == "l")


def _cut(body: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(
        n
        if isinstance(n, Step)
        else n.model_copy(update={"body": _cut(n.body)} | ({"count": KEPT} if n.var == "l" else {}))
        for n in body
    )
