"""Programs unrolled: what each warp of a worker runs, as numbered local events.

An item is one step with its loop variables; every warp of the step's role runs it. A local event is one item on one
warp, except that a barrier is two events: `arrive` (the step's waits, then one arrival) and `leave` (wait for the
round, then the step's signals). Events are numbered warp by warp in program order, as `System` wants them.

All workers of a program share one trace: only tables, hence counter amounts and byte addresses, differ between them.

Errors: `TooLarge` when a program unrolls to more than `MAX_ITEMS` items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Loop, Node, Program, Role, Schedule, Step
from amk.validator.builder import assemble
from amk.validator.system import I64, System

MAX_ITEMS: Final = 100_000
OUTSIDE_TOKENS: Final = -1
BARRIERS: Final = 16
"""Named barriers of a worker."""

Path = tuple[str | int, ...]


class TooLarge(RuntimeError):
    """The schedule unrolls to more events than the checks are willing to enumerate."""


@dataclass(frozen=True)
class Site:
    """A step as written: its number within the program and its JSON pointer; loops around it, outermost first."""

    step: Step
    number: int
    path: Path
    around: tuple[Loop, ...]


@dataclass(frozen=True)
class Item:
    """A step as run: loop variables, `n` included inside the token loop; token is `OUTSIDE_TOKENS` outside it."""

    site: Site
    token: int
    loops: dict[str, int]

    @property
    def step(self) -> Step:
        return self.site.step


def sites(program: Program, number: int) -> list[Site]:
    """Every step of the program in textual order; `number` is the program's index in the schedule."""
    found: list[Site] = []

    def walk(body: tuple[Node, ...], path: Path, around: tuple[Loop, ...]) -> None:
        for i, node in enumerate(body):
            if isinstance(node, Step):
                found.append(Site(node, len(found), (*path, i), around))
            else:
                walk(node.body, (*path, i, "body"), (*around, node))

    walk(program.body, ("programs", number, "body"), ())
    return found


def unrolled_length(body: tuple[Node, ...], tokens: int) -> int:
    """Items that `unroll` yields, without unrolling."""
    total = 0
    for node in body:
        if isinstance(node, Step):
            total += 1
        else:
            total += (tokens if node.count is None else node.count) * unrolled_length(node.body, tokens)
    return total


def unroll(program: Program, number: int, tokens: int, only: tuple[type, ...] = ()) -> list[Item]:
    """The items of a launch of `tokens` tokens that starts at epoch 0, in program order; only: those with such ops."""
    length = unrolled_length(program.body, tokens)
    if length > MAX_ITEMS:
        raise TooLarge(f"program {program.name} unrolls to {length:,} steps for {tokens} tokens, at most {MAX_ITEMS:,}")
    kept: dict[Path, dict[int, Site]] = {}
    for site in sites(program, number):
        if not only or isinstance(site.step.op, only):
            kept.setdefault(site.path[:-1], {})[int(site.path[-1])] = site
    return list(_items(program.body, ("programs", number, "body"), {}, tokens, kept))


def _items(
    body: tuple[Node, ...], path: Path, loops: dict[str, int], tokens: int, kept: dict[Path, dict[int, Site]]
) -> Iterator[Item]:
    """kept: the steps to yield, by the path of their list and their place in it."""
    steps, token = kept.get(path, {}), loops.get("t", OUTSIDE_TOKENS)
    for i, node in enumerate(body):
        if isinstance(node, Step):
            if i in steps:
                yield Item(steps[i], token, loops)
            continue
        for k in range(tokens if node.count is None else node.count):
            inner = loops | ({"t": k, "n": k} if node.var == "t" else {node.var: k})
            yield from _items(node.body, (*path, i, "body"), inner, tokens, kept)


@dataclass(frozen=True, eq=False)
class Trace:
    """Local events of one program. first [warps + 1]; item, leave [events]; event_of [items, warps], -1 if not run."""

    program: Program
    items: list[Item]
    warps: int
    roles: dict[str, range]
    first: I64
    item: I64
    leave: np.ndarray
    event_of: I64

    @property
    def events(self) -> int:
        return len(self.item)

    @cached_property
    def warp_of(self) -> I64:
        return np.repeat(np.arange(self.warps), np.diff(self.first))

    @cached_property
    def index_of(self) -> I64:
        return np.arange(self.events) - np.repeat(self.first[:-1], np.diff(self.first))

    @cached_property
    def barrier_waits(self) -> I64:
        """[n, 3] (event, barrier id, threshold): round k of an agent ends at agents * (k + 1) arrivals."""
        return self._barriers[0]

    @cached_property
    def barrier_signals(self) -> I64:
        """[n, 3] (event, barrier id, 1)."""
        return self._barriers[1]

    @cached_property
    def _barriers(self) -> tuple[I64, I64]:
        waits, signals = [], []
        rounds: dict[tuple[int, int], int] = {}
        for event in np.flatnonzero(self.leave).tolist():
            op = self.items[int(self.item[event])].step.op
            assert isinstance(op, BarrierOp)
            key = (int(self.warp_of[event]), op.id)
            rounds[key] = rounds.get(key, 0) + 1
            waits.append((event, op.id, op.agents * rounds[key]))
            signals.append((event - 1, op.id, 1))
        return np.array(waits, np.int64).reshape(-1, 3), np.array(signals, np.int64).reshape(-1, 3)

    @cached_property
    def local_system(self) -> System:
        """One worker alone, its waits on counters taken as granted: only the barriers are left."""
        return assemble(self.warps, self.warp_of, [0] * BARRIERS, self.barrier_waits, self.barrier_signals, ())[0]


def trace(schedule: Schedule, number: int, tokens: int) -> Trace:
    """The trace of program `number` for a launch of `tokens` tokens."""
    return trace_of(schedule.programs[number], number, schedule.roles, schedule.launch.warps, tokens)


def trace_of(program: Program, number: int, all_roles: tuple[Role, ...], warps: int, tokens: int) -> Trace:
    """`trace` of a program on its own."""
    items = unroll(program, number, tokens)
    roles = {r.name: range(r.first, r.first + r.count) for r in all_roles}
    per_warp: list[list[tuple[int, bool]]] = [[] for _ in range(warps)]
    for i, item in enumerate(items):
        op = item.step.op
        for warp in roles[op.role]:
            per_warp[warp].append((i, False))
            if isinstance(op, BarrierOp):
                per_warp[warp].append((i, True))
    flat = [entry for entries in per_warp for entry in entries]
    numbers = np.array([i for i, _ in flat], np.int64).reshape(-1)
    leave = np.array([late for _, late in flat], bool).reshape(-1)
    first = np.cumsum([0, *(len(entries) for entries in per_warp)])
    warp_of = np.repeat(np.arange(warps), np.diff(first))
    event_of = np.full((len(items), warps), -1, np.int64)
    arriving = ~leave
    event_of[numbers[arriving], warp_of[arriving]] = np.flatnonzero(arriving)
    return Trace(program, items, warps, roles, first, numbers, leave, event_of)
