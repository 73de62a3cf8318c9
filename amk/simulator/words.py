"""Who waits for whose tagged words.

A step that reads a tagged buffer re-reads until every word carries its tag: it waits for the step that writes those
words in the same iteration. Owners are found by the byte hulls of the workers' writes: a superset of the writers of the
bytes read, so a wait may be predicted too long, never too short. A buffer that is read whole needs no hulls.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.schedule import Schedule
from amk.simulator.probe import Probe
from amk.simulator.program import Window
from amk.validator.program.trace import Item, Path

Key = tuple[str, int]
Hull = tuple[int, int]
Touched = dict[tuple[str, str], Hull]
"""(kind of access, buffer): bytes between the first and the last one."""
WHOLE = 0.9
"""Share of a buffer whose reading counts as reading all that was written."""
EVERYWHERE = ("l", "t", "n")
"""Loop variables: every iteration touches the same bytes of a buffer with tags."""


@dataclass
class _Written:
    """Times by group, and who waits for which groups."""

    times: dict[int, float] = field(default_factory=dict)
    waiters: list[tuple[int, frozenset[int]]] = field(default_factory=list)

    def woken(self) -> list[int]:
        """Those for whom all have written; they wait no more."""
        if not self.waiters:
            return []
        done = self.times.keys()
        ready = [group for group, owners in self.waiters if owners <= done]
        if ready:
            self.waiters = [w for w in self.waiters if not w[1] <= done]
        return ready


_Uses = tuple[tuple[tuple[_Written, frozenset[int]], ...], tuple[_Written, ...]]
_Named = tuple[tuple[tuple[str, frozenset[int]], ...], tuple[str, ...]]


class Footprints:
    """What steps touch of tagged buffers, for one position after the other of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.geometry = schedule.geometry()
        self.tables = {n: np.array(c, np.int64) for n, c in schedule.tables.items()}
        self.tagged = {b.name: b for b in schedule.buffers if b.tagged}
        self.touches: dict[Path, dict[tuple[str, ...], dict[tuple[int, ...], Touched]]] = {}

    def mentions(self, item: Item) -> bool:
        """Whether the step names a tagged buffer."""
        op = item.step.op
        if not self.tagged or isinstance(op, BarrierOp | WaitOp | SignalOp):
            return False
        return any(isinstance(value, str) and value in self.tagged for _, value in op)

    def touched(self, item: Item, worker: int, pos: int) -> Touched:
        """Of the first and the last agent of the role, between which the others lie. Looked up if nothing that they
        read of worker and position differs from what others had.
        """
        known = self.touches.setdefault(item.site.path, {})
        for names, values in known.items():
            before = values.get(tuple(self._read(name, worker, pos) for name in names))
            if before is not None:
                return before
        spans: Touched = {}
        seen: set[str] = set()
        for agent in sorted({0, self.geometry.role_size[item.step.op.role] - 1}):
            env = Probe(item.loops, worker, agent, pos, self.tables)
            for access in item.step.op.accesses(env, self.geometry):
                if access.buffer in self.tagged:
                    lo, hi = spans.get(key := (access.kind, access.buffer), (access.lo, access.hi))
                    spans[key] = min(lo, access.lo), max(hi, access.hi)
            seen |= env.log.keys()
        names = tuple(sorted(seen.difference(EVERYWHERE)))
        known.setdefault(names, {})[tuple(self._read(name, worker, pos) for name in names)] = spans
        return spans

    def _read(self, name: str, worker: int, pos: int) -> int:
        if name == "worker":
            return worker
        return pos if name == "pos" else int(self.tables[name][worker])


class Words:
    """Tagged buffers of one window at one position."""

    def __init__(self, window: Window, pos: int, footprints: Footprints | None = None) -> None:
        """footprints: those of the schedule, if it is timed at several positions."""
        self.window, self.pos = window, pos
        self.footprints = footprints or Footprints(window.schedule)
        self.tagged = self.footprints.tagged
        self.state: dict[Key, _Written] = {}
        self.states: dict[tuple[str, int, int], _Written] = {}
        self.uses: list[list[_Uses | None]] = [[None] * len(window.items[g.program]) for g in window.groups]
        self.touching: dict[tuple[int, int], Touched] = {}
        self.named: dict[tuple[int, int], _Named] = {}
        self.writers: dict[str, list[tuple[int, Hull]]] = {}
        self.writing: dict[str, frozenset[int]] = {}
        self.sites = [self._sites(items) for items in window.items]

    def forget(self) -> None:
        """Before another run over the same window."""
        for written in self.state.values():
            written.times, written.waiters = {}, []

    def fresh(self, group: int, item: int) -> float | None:
        """When the words that the item reads were all written; None if some were not yet."""
        latest = 0.0
        for written, owners in self._uses(group, item)[0]:
            times = written.times
            if len(times) < len(owners):
                return None
            for owner in owners:
                time = times.get(owner)
                if time is None:
                    return None
                if time > latest:
                    latest = time
        return latest

    def wait(self, group: int, item: int) -> None:
        for written, owners in self._uses(group, item)[0]:
            if not owners <= written.times.keys():
                written.waiters.append((group, owners))
                return

    def written(self, group: int, item: int, time: float) -> list[int]:
        """The item was done: groups that may now go on."""
        woken: list[int] = []
        for state in self._uses(group, item)[1]:
            state.times[group] = time
            woken += state.woken()
        return woken

    def _uses(self, group: int, item: int) -> _Uses:
        """Words that the item reads, with those who write them, and words that it writes."""
        uses = self.uses[group][item]
        if uses is None:
            program = self.window.groups[group].program
            reads, writes = self._named(group, self.window.items[program][item].site.number)
            uses = self.uses[group][item] = (
                tuple((self._state(name, program, item), owners) for name, owners in reads),
                tuple(self._state(name, program, item) for name in writes),
            )
        return uses

    def _named(self, group: int, site: int) -> _Named:
        """Tagged buffers that the step reads, with the groups that write there, and those that it writes."""
        words = self.named.get((group, site))
        if words is None:
            touched = self._touched(group, site)
            reads, writes = (sorted(n for kind, n in touched if kind == wanted) for wanted in ("read", "write"))
            words = tuple((name, self._owners(group, site, name)) for name in reads), tuple(writes)
            self.named[group, site] = words
        return words

    def _state(self, name: str, program: int, item: int) -> _Written:
        """Of the words that the item's iteration writes. AMK009 outside of the loop that their tags count."""
        key = name, program, item
        state = self.states.get(key)
        if state is None:
            env = Env(loops=self.window.items[program][item].loops, worker=0)
            try:
                tag = env.eval_int(self.tagged[name].tag or 0)
            except KeyError as loop:
                message = f"the tags of '{name}' count loop {loop}, and a step outside of it uses them"
                raise AmkError(Diagnostic("AMK009", message)) from None
            state = self.states[key] = self.state.setdefault((name, tag), _Written())
        return state

    def _touched(self, group: int, site: int) -> Touched:
        """What the first worker of the group touches in the step."""
        footprint = self.touching.get((group, site))
        if footprint is None:
            workers_alike = self.window.groups[group]
            item = self.sites[workers_alike.program].get(site)
            footprint = self.footprints.touched(item, workers_alike.workers[0], self.pos) if item else {}
            self.touching[group, site] = footprint
        return footprint

    def _owners(self, group: int, site: int, name: str) -> frozenset[int]:
        """Groups that write words which the step reads."""
        lo, hi = self._touched(group, site)["read", name]
        if hi - lo >= WHOLE * self.tagged[name].bytes:
            return self._writing(name)
        return frozenset(g for g, (a, b) in self._hulls(name) if a < hi and lo < b)

    def _writing(self, name: str) -> frozenset[int]:
        """Groups that write the buffer at all."""
        if name not in self.writing:
            self.writing[name] = frozenset(n for n, _, _ in self._writers(name))
        return self.writing[name]

    def _writers(self, name: str) -> list[tuple[int, tuple[int, ...], Item]]:
        """(group, its workers, step) where a group writes the buffer."""
        return [
            (n, group.workers, item)
            for n, group in enumerate(self.window.groups)
            for site, item in self.sites[group.program].items()
            if ("write", name) in self._touched(n, site)
        ]

    def _sites(self, items: tuple[Item, ...]) -> dict[int, Item]:
        """The first item of each step that names a tagged buffer, by the step's number."""
        seen: dict[int, Item] = {}
        for item in items:
            seen.setdefault(item.site.number, item)
        return {n: item for n, item in seen.items() if self.footprints.mentions(item)}

    def _hulls(self, name: str) -> list[tuple[int, Hull]]:
        """(group, bytes between the first and the last written one) of every writing worker. In an edited schedule one
        of a group may write nothing."""
        if name not in self.writers:
            touched = [
                (n, self.footprints.touched(item, worker, self.pos).get(("write", name)))
                for n, workers, item in self._writers(name)
                for worker in workers
            ]
            self.writers[name] = [(n, hull) for n, hull in touched if hull is not None]
        return self.writers[name]
