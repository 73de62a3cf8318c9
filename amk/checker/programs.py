"""Programs unrolled: items, and the local order of the warps of one worker.

An item is one step with its loop variables, run by every warp of its role. Two tokens are unrolled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Node, Schedule, Step

I64 = npt.NDArray[np.int64]
TOKENS: Final = 2
MAX_ITEMS: Final = 20_000
MAX_STEPS: Final = 1 << 20
"""Of a token, in all programs and layers together."""
MAX_BLOCKS: Final = 1 << 16
"""Of the cache: what attention touches is spelled out by them."""
CELLS: Final = 1 << 28


class Rejected(Exception):
    """Why the certificate proves nothing about the schedule."""


def require(condition: object, reason: str) -> None:
    if not condition:
        raise Rejected(reason)


def require_small(schedule: Schedule) -> None:
    """A short text may say much: what would not end is refused before anything of it is spelled out."""
    steps = sum(_length(node) for program in schedule.programs for node in program.body)
    require(steps <= MAX_STEPS, "program: too long")
    require(schedule.kv.context <= schedule.kv.block * MAX_BLOCKS, "positions: in too many blocks")


def _length(node: Node) -> int:
    return 1 if isinstance(node, Step) else (node.count or 1) * sum(map(_length, node.body))


@dataclass(frozen=True)
class Item:
    """One step as run. token: -1 outside the token loop."""

    step: Step
    loops: dict[str, int]

    @property
    def token(self) -> int:
        return self.loops.get("t", -1)


@dataclass(frozen=True, eq=False)
class Program:
    """roles[j]: warps that run item j."""

    workers: range
    warps: int
    items: list[Item]
    roles: list[range]

    @cached_property
    def barrier(self) -> list[bool]:
        """Which items are barriers."""
        return [isinstance(item.step.op, BarrierOp) for item in self.items]

    @cached_property
    def warp_class(self) -> I64:
        """[warps] the warp class of each warp: those that run the same items."""
        runs = {role: n for n, role in enumerate(dict.fromkeys(self.roles))}
        kinds = [tuple(n for role, n in runs.items() if warp in role) for warp in range(self.warps)]
        return np.array([sorted(set(kinds)).index(kind) for kind in kinds], np.int64)

    @cached_property
    def ahead(self) -> I64:
        """[items, warp classes a, warp classes b] how many first items are over on all warps of b when one of a
        starts the item. Items that b does not run count as over."""
        n, size = len(self.items), np.bincount(self.warp_class)
        follows = np.full((n + 1, len(size)), n, np.int64)
        state = np.zeros((len(size), len(size)), np.int64)
        found = np.zeros((n, *state.shape), np.int64)
        for j in reversed(range(n)):
            follows[j] = follows[j + 1]
            follows[j, self.warp_class[self.roles[j]]] = j
        for j, role in enumerate(self.roles):
            found[j], mine = state, np.unique(self.warp_class[role])
            single = mine[size[mine] == 1]
            state[single, single] = j + 1
            if self.barrier[j]:
                state[mine] = state[mine].max(axis=0)
                state[np.ix_(mine, mine)] = j + 1
        return follows[found, np.arange(len(size))]


def programs_of(schedule: Schedule) -> list[Program]:
    """Rejects what is outside the class, and barriers that are not joined by exactly their role."""
    ranges = {r.name: range(r.first, r.first + r.count) for r in schedule.roles}
    found: list[Program] = []
    owner: dict[tuple[str, int], range] = {}
    for p in schedule.programs:
        items = list(islice(_items(p.body, {}), MAX_ITEMS + 1))
        require(len(items) <= MAX_ITEMS, "program: too long")
        roles = [ranges[item.step.op.role] for item in items]
        for op, role in zip((item.step.op for item in items), roles, strict=True):
            require(role.stop <= schedule.launch.warps, "roles: more warps than a worker has")
            if isinstance(op, BarrierOp):
                require(op.agents == len(role), "barrier: not joined by exactly its role")
                require(owner.setdefault((p.name, op.id), role) == role, "barrier: an id with two roles")
        require(all(_within_class(item.step) for item in items), "class: synchronisation outside of it")
        found.append(Program(range(p.first, p.first + p.count), schedule.launch.warps, items, roles))
    longest = max(len(program.items) for program in found)
    require(schedule.launch.workers**2 * max(longest, schedule.launch.warps) <= CELLS, "schedule: too large")
    return found


def _within_class(step: Step) -> bool:
    plain = all(w.compare == ">=" and w.data is None and w.touch == "strong" for w in step.waits) and all(
        s.action == "add" and s.touch == "strong" for s in step.signals
    )
    plain &= step.stores == "plain" and (not isinstance(step.op, BarrierOp) or step.op.kind == "sync")
    return plain and step.when is None and not step.takes and not step.gives


def _items(body: tuple[Node, ...], loops: dict[str, int]) -> Iterator[Item]:
    for node in body:
        if isinstance(node, Step):
            yield Item(node, loops)
            continue
        for k in range(TOKENS if node.count is None else node.count):
            inner = {"t": k, "n": k} if node.var == "t" else {node.var: k}
            yield from _items(node.body, loops | inner)
