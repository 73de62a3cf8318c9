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
from typing import Final, NamedTuple

import numpy as np

from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Loop, Node, Program, Schedule, Signal, Step, Wait
from amk.validator.program.system import I64, System, assemble

MAX_ITEMS: Final = 100_000
OUTSIDE_TOKENS: Final = -1
BARRIERS: Final = 16
"""Named barriers of a worker."""

Path = tuple[str | int, ...]


class TooLarge(RuntimeError):
    """The schedule unrolls to more events than the checks are willing to enumerate."""


class Site(NamedTuple):
    """A step as written: its number within the program and its JSON pointer; loops around it, outermost first."""

    step: Step
    number: int
    path: Path
    around: tuple[Loop, ...]

    @property
    def layers(self) -> int | None:
        """Iterations of the layer loop around it, if it is in one."""
        return next((loop.count or 1 for loop in self.around if loop.var == "l"), None)

    @property
    def uses(self) -> list[tuple[Path, Wait | Signal]]:
        """Its waits and signals with their JSON pointers."""
        waits: list[tuple[Path, Wait | Signal]] = [((*self.path, "waits", i), w) for i, w in enumerate(self.step.waits)]
        return waits + [((*self.path, "signals", i), s) for i, s in enumerate(self.step.signals)]


Listed = Site | tuple[Loop, list["Listed"]]
"""A step, or a loop with what it repeats."""


class Item(NamedTuple):
    """A step as run: loop variables, `n` included inside the token loop; token is `OUTSIDE_TOKENS` outside it."""

    site: Site
    token: int
    loops: dict[str, int]

    @property
    def step(self) -> Step:
        return self.site.step


def sites(program: Program, number: int) -> tuple[Site, ...]:
    """Every step of the program in textual order; `number` is the program's index in the schedule."""
    return _sites(_Same(program), number)


def all_sites(schedule: Schedule) -> Iterator[Site]:
    """Every step of every program."""
    for number, program in enumerate(schedule.programs):
        yield from sites(program, number)


@dataclass(frozen=True, eq=False)
class _Same:
    """Equal to itself only: nothing is compared or hashed by its content."""

    program: Program

    def __hash__(self) -> int:
        return id(self.program)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.program is self.program


def _sites(same: _Same, number: int) -> tuple[Site, ...]:
    program = same.program
    found: list[Site] = []

    def walk(body: tuple[Node, ...], path: Path, around: tuple[Loop, ...]) -> None:
        for i, node in enumerate(body):
            if isinstance(node, Step):
                found.append(Site(node, len(found), (*path, i), around))
            else:
                walk(node.body, (*path, i, "body"), (*around, node))

    walk(program.body, ("programs", number, "body"), ())
    return tuple(found)


def unrolled_length(body: tuple[Node, ...], tokens: int) -> int:
    """Items that `unroll` yields, without unrolling."""
    total = 0
    for node in body:
        if isinstance(node, Step):
            total += 1
        else:
            total += (tokens if node.count is None else node.count) * unrolled_length(node.body, tokens)
    return total


def require_length(program: Program, tokens: int) -> None:
    """`TooLarge` if so many tokens unroll to more than `MAX_ITEMS` items."""
    length = unrolled_length(program.body, tokens)
    if length > MAX_ITEMS:
        raise TooLarge(f"program {program.name} unrolls to {length:,} steps for {tokens} tokens, at most {MAX_ITEMS:,}")


def unroll(program: Program, number: int, tokens: int, only: tuple[type, ...] = ()) -> list[Item]:
    """The items of a launch of `tokens` tokens that starts at epoch 0, in program order; only: those with such ops."""
    require_length(program, tokens)
    kept = {site.path: site for site in sites(program, number) if not only or isinstance(site.step.op, only)}
    found: list[Item] = []
    _run(_listed(program.body, ("programs", number, "body"), kept), {}, tokens, found)
    return found


def last_items(program: Program, number: int) -> list[Item]:
    """For every step its last item of a launch of one token, in textual order; errors as `unroll`."""
    require_length(program, 1)
    found = []
    for site in sites(program, number):
        loops: dict[str, int] = {}
        for loop in site.around:
            loops |= {"t": 0, "n": 0} if loop.var == "t" else {loop.var: (loop.count or 1) - 1}
        found.append(Item(site, loops.get("t", OUTSIDE_TOKENS), loops))
    return found


def _listed(body: tuple[Node, ...], path: Path, sites: dict[Path, Site]) -> list[Listed]:
    """The kept steps and loops of a list, loops with what they repeat."""
    found: list[Listed] = []
    for i, node in enumerate(body):
        if isinstance(node, Loop):
            found.append((node, _listed(node.body, (*path, i, "body"), sites)))
        elif (*path, i) in sites:
            found.append(sites[*path, i])
    return found


def _run(listed: list[Listed], loops: dict[str, int], tokens: int, items: list[Item]) -> None:
    """Append the items in the order in which they run."""
    token = loops.get("t", OUTSIDE_TOKENS)
    for entry in listed:
        if isinstance(entry, Site):
            items.append(Item(entry, token, loops))
            continue
        loop, inside = entry
        for k in range(tokens if loop.count is None else loop.count):
            _run(inside, loops | ({"t": k, "n": k} if loop.var == "t" else {loop.var: k}), tokens, items)


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
        event = np.flatnonzero(self.leave)
        ops = [item.step.op for item in self.items]
        sizes = np.array([(op.id, op.agents) if isinstance(op, BarrierOp) else (0, 0) for op in ops], np.int64)
        number, agents = sizes.reshape(-1, 2)[self.item[event]].T
        key = self.warp_of[event] * BARRIERS + number
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        rounds = np.empty_like(key)
        rounds[order] = np.arange(1, len(key) + 1) - np.repeat(first, np.diff(first, append=len(key)))
        ones = np.ones_like(event)
        return np.stack((event, number, agents * rounds), axis=1), np.stack((event - 1, number, ones), axis=1)

    @cached_property
    def local_system(self) -> System:
        """One worker alone, its waits on counters taken as granted: only the barriers are left."""
        return assemble(self.warps, self.warp_of, [0] * BARRIERS, self.barrier_waits, self.barrier_signals, ())[0]


def trace(schedule: Schedule, number: int, tokens: int) -> Trace:
    """The trace of program `number` for a launch of `tokens` tokens."""
    program, warps = schedule.programs[number], schedule.launch.warps
    items = unroll(program, number, tokens)
    roles = {r.name: range(r.first, r.first + r.count) for r in schedule.roles}
    # of a barrier every warp has two events
    events = np.array([1 + isinstance(item.step.op, BarrierOp) for item in items], np.int64)
    role = [item.step.op.role for item in items]
    runs = {name: np.array([r == name for r in role], bool) for name in roles}
    per_warp = []
    for warp in range(warps):
        mine = np.zeros(len(items), bool)
        for name, span in roles.items():
            if warp in span:
                mine |= runs[name]
        at = np.flatnonzero(mine)
        per_warp.append(np.repeat(at, events[at]))
    numbers = np.concatenate([np.zeros(0, np.int64), *per_warp])
    leave = np.concatenate([np.zeros(0, bool), *(np.diff(each, prepend=-1) == 0 for each in per_warp)])
    first = np.cumsum([0, *(len(entries) for entries in per_warp)])
    warp_of = np.repeat(np.arange(warps), np.diff(first))
    event_of = np.full((len(items), warps), -1, np.int64)
    arriving = ~leave
    event_of[numbers[arriving], warp_of[arriving]] = np.flatnonzero(arriving)
    return Trace(program, items, warps, roles, first, numbers, leave, event_of)
