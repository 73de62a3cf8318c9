"""How much every counter grows in one token, and which waits are for all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from amk.schedule_ir.edits.tree import Branch, Leaf, tree
from amk.schedule_ir.expr import Env, Expr, IntArray, symbols
from amk.schedule_ir.schedule import Program, Schedule, Wait

MAX_SITES, MAX_AGENTS = 20_000, 2**24
"""Steps in all rounds of loops but that over tokens, and agents that run them; of more nothing is said."""


class Site:
    """A step in one round of its loops but that over tokens, for every agent that runs it."""

    def __init__(
        self, schedule: Schedule, program: Program, leaf: Leaf, loops: Mapping[str, int], tables: Mapping[str, IntArray]
    ) -> None:
        self.name, self.step, self.loops = leaf.name, leaf.step, loops
        agents = next(r.count for r in schedule.roles if r.name == self.step.op.role)
        workers = np.arange(program.first, program.first + program.count)
        self._worker, self._agent = np.repeat(workers, agents), np.tile(np.arange(agents), program.count)
        self._tables = tables

    def at(self, expr: Expr, t: int = 0) -> IntArray:
        """The expression for every agent, in token t."""
        env = Env({**self.loops, "t": t, "n": t}, self._worker, self._agent, tables=self._tables)
        return np.broadcast_to(np.asarray(env.eval(expr), np.int64), self._worker.shape)

    def instances(self, index: Sequence[Expr], shape: tuple[int, ...]) -> IntArray | None:
        """The flat counter instance of every agent; None if one is out of bounds or depends on the token."""
        if len(index) != len(shape) or any("t" in symbols(e) for e in index):
            return None
        parts = [self.at(e) for e in index]
        if any(((p < 0) | (p >= n)).any() for p, n in zip(parts, shape, strict=True)):
            return None
        return np.asarray(np.ravel_multi_index(parts, shape), np.int64)


def sites(schedule: Schedule) -> Iterator[Site]:
    """Every step that waits or signals, in every round; nothing where these are too many."""
    if not _few(schedule):
        return
    tables = {n: np.array(c, np.int64) for n, c in schedule.tables.items()}
    for program in schedule.programs:
        for leaf, loops in _rounds(tree(program), {}):
            yield Site(schedule, program, leaf, loops, tables)


def _rounds(branch: Branch, loops: Mapping[str, int]) -> Iterator[tuple[Leaf, Mapping[str, int]]]:
    for node in branch.nodes:
        if isinstance(node, Leaf):
            if node.step.waits or node.step.signals:
                yield node, loops
        else:
            for k in range(node.count or 1):
                yield from _rounds(node, {**loops, node.var: k})


def _few(schedule: Schedule) -> bool:
    counts = [(_count(tree(p)), p.count) for p in schedule.programs]
    most = max(r.count for r in schedule.roles)
    return sum(n for n, _ in counts) <= MAX_SITES and sum(n * w * most for n, w in counts) <= MAX_AGENTS


def _count(branch: Branch) -> int:
    """Steps that wait or signal, times the rounds around them."""
    own = (_count(n) if isinstance(n, Branch) else bool(n.step.waits or n.step.signals) for n in branch.nodes)
    return sum(own) * (branch.count or 1)


def totals(schedule: Schedule) -> dict[str, IntArray]:
    """Counter -> what each instance grows by in a token, flat.

    Counters that are signalled outside the loop over tokens, at an index or by a number that depends on the token, or
    out of bounds, are left out.
    """
    if not _few(schedule):
        return {}
    shapes = {c.name: c.shape for c in schedule.counters}
    grown = {c.name: np.zeros(c.count, np.int64) for c in schedule.counters}
    for site in sites(schedule):
        for signal in site.step.signals:
            where = site.instances(signal.index, shapes[signal.counter])
            if where is None or "t" not in site.loops or "t" in symbols(signal.add):
                grown.pop(signal.counter, None)
            elif signal.counter in grown:
                np.add.at(grown[signal.counter], where, site.at(signal.add))
    return grown


def full_joins(schedule: Schedule) -> set[tuple[str, str, str]]:
    """Waits, by `key_of`, whose threshold is all that a token signals, in every round and for every agent."""
    sums_by_counter, shapes = totals(schedule), {c.name: c.shape for c in schedule.counters}
    found: dict[tuple[str, str, str], bool] = {}
    for site in sites(schedule):
        for wait in site.step.waits:
            where = site.instances(wait.index, shapes[wait.counter]) if wait.counter in sums_by_counter else None
            full = where is not None and "t" in site.loops and _is_all(site, wait, sums_by_counter[wait.counter][where])
            key = key_of(site.name, wait)
            found[key] = found.get(key, True) and full
    return {key for key, full in found.items() if full}


def key_of(step: str, wait: Wait) -> tuple[str, str, str]:
    """What tells waits apart: the step, the counter, and all that the wait says."""
    return step, wait.counter, wait.model_dump_json()


def _is_all(site: Site, wait: Wait, grown: IntArray) -> bool:
    return all(bool((site.at(wait.at_least, t) == grown * (t + 1)).all()) for t in (0, 1)) and bool(grown.all())
