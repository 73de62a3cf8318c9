"""Who waits for whose tagged words.

A step that reads a tagged buffer re-reads until every word carries its tag: it waits for the step that writes those
words in the same iteration. Owners are found by the byte hulls of the workers' writes: a superset of the writers of the
bytes read, so a wait may be predicted too long, never too short. A buffer that is read whole needs no hulls.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import Access, BarrierOp, SignalOp, WaitOp
from amk.simulator.program import Window
from amk.validator.trace import Item

Key = tuple[str, int]
Hull = tuple[int, int]
_Uses = tuple[tuple[tuple[Key, frozenset[int]], ...], tuple[Key, ...]]
WHOLE = 0.9
"""Share of a buffer whose reading counts as reading all that was written."""


@dataclass
class _Written:
    """Times by group, and who waits for which groups."""

    times: dict[int, float] = field(default_factory=dict)
    waiters: list[tuple[int, frozenset[int]]] = field(default_factory=list)

    def woken(self) -> list[int]:
        """Those for whom all have written; they wait no more."""
        done = self.times.keys()
        found = [group for group, owners in self.waiters if owners <= done]
        if found:
            self.waiters = [w for w in self.waiters if not w[1] <= done]
        return found


class Words:
    """Tagged buffers of one window at one position."""

    def __init__(self, window: Window, pos: int) -> None:
        self.window, self.pos = window, pos
        schedule = window.schedule
        self.geometry = schedule.geometry()
        self.tables = {n: np.array(c, np.int64) for n, c in schedule.tables.items()}
        self.roles = self.geometry.role_size
        self.tagged = {b.name: b for b in schedule.buffers if b.tagged}
        self.state: dict[Key, _Written] = {}
        self.uses: dict[tuple[int, int], _Uses] = {}
        self.touching: dict[tuple[int, int], tuple[frozenset[str], frozenset[str]]] = {}
        self.readers: dict[tuple[int, int, str], frozenset[int]] = {}
        self.writers: dict[str, list[tuple[int, Hull]]] = {}
        self.writing: dict[str, frozenset[int]] = {}
        self.sites = [self._sites(items) for items in window.items]

    def forget(self) -> None:
        """Before another run over the same window."""
        self.state = {}

    def fresh(self, group: int, item: int) -> float | None:
        """When the words that the item reads were all written; None if some were not yet."""
        latest = 0.0
        for key, owners in self._uses(group, item)[0]:
            times = self._state(key).times
            for owner in owners:
                time = times.get(owner)
                if time is None:
                    return None
                if time > latest:
                    latest = time
        return latest

    def wait(self, group: int, item: int) -> None:
        for key, owners in self._uses(group, item)[0]:
            written = self._state(key)
            if not owners <= written.times.keys():
                written.waiters.append((group, owners))
                return

    def written(self, group: int, item: int, time: float) -> list[int]:
        """The item was done: groups that may now go on."""
        woken: list[int] = []
        for key in self._uses(group, item)[1]:
            found = self._state(key)
            found.times[group] = time
            woken += found.woken()
        return woken

    def _state(self, key: Key) -> _Written:
        found = self.state.get(key)
        if found is None:
            found = self.state[key] = _Written()
        return found

    def _uses(self, group: int, item: int) -> _Uses:
        """Words that the item reads, with those who write them, and words that it writes."""
        found = self.uses.get((group, item))
        if found is None:
            step = self._item(group, item)
            reads, writes = self._names(group, step)
            found = self.uses[group, item] = (
                tuple((self._key(name, step), self._owners(group, step, name)) for name in sorted(reads)),
                tuple(self._key(name, step) for name in sorted(writes)),
            )
        return found

    def _item(self, group: int, item: int) -> Item:
        return self.window.items[self.window.groups[group].program][item]

    def _key(self, name: str, item: Item) -> Key:
        return name, Env(loops=item.loops, worker=0).eval_int(self.tagged[name].tag or 0)

    def _names(self, group: int, item: Item) -> tuple[frozenset[str], frozenset[str]]:
        """Tagged buffers that the step reads and writes."""
        key = group, item.site.number
        if key not in self.touching:
            worker = self.window.groups[group].workers[0]
            mentions = item.site.number in self.sites[self.window.groups[group].program]
            found = self._accesses(item, worker) if mentions else []
            reads = frozenset(a.buffer for a in found if a.kind == "read" and a.buffer in self.tagged)
            writes = frozenset(a.buffer for a in found if a.kind == "write" and a.buffer in self.tagged)
            self.touching[key] = reads, writes
        return self.touching[key]

    def _mentions(self, item: Item) -> bool:
        op = item.step.op
        if not self.tagged or isinstance(op, BarrierOp | WaitOp | SignalOp):
            return False
        return any(isinstance(value, str) and value in self.tagged for _, value in op)

    def _accesses(self, item: Item, worker: int) -> list[Access]:
        """Of the first and the last agent of the role, between which the others lie."""
        found: list[Access] = []
        for agent in sorted({0, self.roles[item.step.op.role] - 1}):
            env = Env(loops=item.loops, worker=worker, agent=agent, pos=self.pos, tables=self.tables)
            found += item.step.op.accesses(env, self.geometry)
        return found

    def _owners(self, group: int, item: Item, name: str) -> frozenset[int]:
        """Groups that write words which the step reads."""
        key = group, item.site.number, name
        if key not in self.readers:
            worker = self.window.groups[group].workers[0]
            lo, hi = _hull(self._accesses(item, worker), name, "read")
            if hi - lo >= WHOLE * self.tagged[name].bytes:
                self.readers[key] = self._writing(name)
            else:
                self.readers[key] = frozenset(g for g, (a, b) in self._hulls(name) if a < hi and lo < b)
        return self.readers[key]

    def _writing(self, name: str) -> frozenset[int]:
        """Groups that write the buffer at all."""
        if name not in self.writing:
            self.writing[name] = frozenset(
                n
                for n, g in enumerate(self.window.groups)
                for item in self.sites[g.program].values()
                if name in self._names(n, item)[1]
            )
        return self.writing[name]

    def _sites(self, items: tuple[Item, ...]) -> dict[int, Item]:
        """The first item of each step that names a tagged buffer, by the step's number."""
        seen: dict[int, Item] = {}
        for item in items:
            seen.setdefault(item.site.number, item)
        return {n: item for n, item in seen.items() if self._mentions(item)}

    def _hulls(self, name: str) -> list[tuple[int, Hull]]:
        """(group, bytes between the first and the last written one) of every writing worker."""
        if name not in self.writers:
            found = []
            for n, group in enumerate(self.window.groups):
                for item in self.sites[group.program].values():
                    if name in self._names(n, item)[1]:
                        found += [(n, _hull(self._accesses(item, w), name, "write")) for w in group.workers]
            self.writers[name] = found
        return self.writers[name]


def _hull(accesses: list[Access], name: str, kind: str) -> Hull:
    spans = [(a.lo, a.hi) for a in accesses if a.buffer == name and a.kind == kind]
    return min(lo for lo, _ in spans), max(hi for _, hi in spans)
