"""Random two-level systems: workers with warps and barriers of their own, counters between them; composed and flat.

Every worker runs its own program. A random interleaving of whole steps is drawn first and most thresholds are taken
from it, so that most systems run to completion and orders are close calls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from amk.adversary.subjects import subject
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.schedule import Schedule
from amk.validator.evidence.flat_system import expand
from amk.validator.memory.composition import groups_of
from amk.validator.order.clocks import Clocks, must_clocks
from amk.validator.order.greedy_run import greedy
from amk.validator.order.intervals import IntervalOrder
from amk.validator.order.two_levels import Group, InterCtaSystem
from amk.validator.program.handoffs import Instances, words
from amk.validator.program.system import System

WARPS = 3
ROLES = {"all": (0, 3), "w0": (0, 1), "w1": (1, 1), "w2": (2, 1), "pair": (0, 2)}
BARRIERS = {"all": 1, "pair": 2}


@dataclass
class _Draw:
    rng: Random
    workers: int
    value: list[int] = field(default_factory=lambda: [0] * 4)

    def step(self) -> dict[str, Any]:
        rng = self.rng
        kind = rng.choice(("barrier", "barrier", "wait", "signal", "signal", "nothing"))
        if kind == "barrier":
            role = rng.choice(sorted(BARRIERS))
            return step({"op": "barrier", "role": role, "id": BARRIERS[role], "agents": ROLES[role][1]})
        role = rng.choice(("all", "w0", "w0", "w1", "w2", "pair"))
        if kind == "nothing":
            return step({"op": "signal", "role": role})
        counter = rng.randrange(len(self.value))
        if kind == "wait":
            now = max(0, self.value[counter] - rng.choice((0, 0, 0, 1, 2)))
            now += rng.randint(1, 2) if rng.random() < 0.03 else 0
            return step({"op": "wait", "role": role}, waits=[awaited(f"g{counter}", now)])
        amount = rng.choice((1, 1, 1, 2))
        self.value[counter] += amount * ROLES[role][1]
        return step({"op": "signal", "role": role}, signals=[signal(f"g{counter}", amount)])


def step(op: dict[str, Any], waits: list[Any] | None = None, signals: list[Any] | None = None) -> dict[str, Any]:
    return {"op": op, "waits": waits or [], "signals": signals or []}


def awaited(counter: str, at_least: int) -> dict[str, Any]:
    return {"counter": counter, "index": [0], "at_least": at_least, "order": "acquire"}


def signal(counter: str, amount: int) -> dict[str, Any]:
    return {"counter": counter, "index": [0], "add": amount, "order": "release"}


def random_two_level(rng: Random) -> Schedule:
    """Two or three workers of three warps, a handful of steps each."""
    workers = rng.choice((2, 2, 3))
    draw = _Draw(rng, workers)
    bodies: list[list[dict[str, Any]]] = [[] for _ in range(workers)]
    for worker in rng.choices(range(workers), k=rng.randint(4, 8) * workers):
        bodies[worker].append(draw.step())
    return schedule_of(bodies)


def schedule_of(bodies: list[list[dict[str, Any]]]) -> Schedule:
    """One worker per step list, counters g0 to g3."""
    document = subject("fenced", len(bodies), 2, 1).document
    launch = document["launch"] | {"warps": WARPS}
    counters = [{"name": f"g{i}", "shape": [1]} for i in range(4)]
    programs = [
        {"name": f"p{w}", "first": w, "count": 1, "body": [{"var": "t", "count": None, "body": body}]}
        for w, body in enumerate(bodies)
    ]
    roles = [{"name": n, "first": first, "count": count} for n, (first, count) in ROLES.items()]
    changed = document | {"launch": launch, "counters": counters, "programs": programs, "roles": roles}
    return parse_schedule(json.dumps(changed).encode(), "two levels")[0]


def _nodes(groups: list[Group]) -> np.ndarray:
    """Composite numbers of all local events, worker by worker."""
    return np.concatenate([g.node_base + np.arange(g.order.trace.events) for g in groups])


@dataclass(frozen=True)
class Comparison:
    """wrong: where the two differ. partial: some wait is met now by one signal, now by another. implied: orders that
    only such waits imply, in number."""

    live: bool
    partial: bool
    implied: int
    wrong: tuple[str, ...]


def compare(schedule: Schedule) -> Comparison:
    """Liveness, and the order of every two events and warp groups, composed against flat."""
    instances = Instances(schedule.counters)
    groups = groups_of(schedule, 1, instances)
    flat = expand(schedule, 0, 1)
    run = greedy(flat.system)
    live = all(g.order.complete for g in groups)
    if live:
        nothing = words(schedule, [g.order.trace.items for g in groups], np.zeros((0, 7), np.int64))
        inter_cta = InterCtaSystem(groups, instances, nothing, "block")
        live = inter_cta.run.complete
    if not live or not run.complete:
        wrong = () if live == run.complete else (f"composed runs to the end: {live}, flat: {run.complete}",)
        return Comparison(False, False, 0, wrong)
    order, clocks = IntervalOrder(inter_cta), must_clocks(run)
    ids = np.concatenate([numbers.reshape(-1) for numbers in flat.event_id])
    nodes = _nodes(groups)
    composed = _matrix(order, nodes)
    i, j = np.meshgrid(ids, ids, indexing="ij")
    truth = clocks.precedes(i.reshape(-1), j.reshape(-1)).reshape(composed.shape)
    np.fill_diagonal(truth, False)
    np.fill_diagonal(composed, False)
    bad = np.argwhere(composed != truth).tolist()
    mismatches = tuple(f"events {a} and {b}: composed {composed[a, b]}" for a, b in bad[:3])
    partial, implied = not _conjunctive(flat.system, clocks), _implied(inter_cta, nodes, truth)
    return Comparison(True, partial, implied, mismatches + _warp_groups(groups, order, truth)[:3])


def _implied(inter_cta: InterCtaSystem, nodes: np.ndarray, truth: np.ndarray) -> int:
    """Orders that intervals alone do not give."""
    intervals = IntervalOrder(inter_cta)
    intervals.implied.left = 0
    return int((truth & ~_matrix(intervals, nodes)).sum())


def _conjunctive(system: System, clocks: Clocks) -> bool:
    """Every wait is met by the signals that must come before it (condition C2 of the composition, for all waits)."""
    for wait, (counter, threshold) in enumerate(
        zip(system.wait_counter.tolist(), system.wait_threshold.tolist(), strict=True)
    ):
        mine = np.flatnonzero(system.signal_counter == counter)
        waiter = np.full(len(mine), system.wait_event[wait])
        before = clocks.precedes(system.signal_event[mine], waiter)
        if int(system.counter_init[counter]) + int(system.signal_amount[mine][before].sum()) < threshold:
            return False
    return True


def _matrix(order: IntervalOrder, nodes: np.ndarray) -> np.ndarray:
    i, j = np.meshgrid(nodes, nodes, indexing="ij")
    order_of_pairs: np.ndarray = order.precedes(i.reshape(-1), j.reshape(-1)).reshape(i.shape)
    return order_of_pairs


def _warp_groups(groups: list[Group], order: IntervalOrder, truth: np.ndarray) -> tuple[str, ...]:
    """A warp group that is said to precede another does so with every member."""
    numbers, members, base = [], [], 0
    for group in groups:
        trace = group.order.trace
        for item, row in enumerate(trace.event_of):
            numbers.append(group.node_base + trace.events + item)
            members.append(base + row[row >= 0])
        base += trace.events
    said = _matrix(order, np.array(numbers))
    np.fill_diagonal(said, False)
    return tuple(
        f"warp groups {a} and {b} are said to be ordered"
        for a, b in np.argwhere(said).tolist()
        if not truth[np.ix_(members[a], members[b])].all()
    )
