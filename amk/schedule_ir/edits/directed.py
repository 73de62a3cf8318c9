"""Draws for a search: edits that often leave a schedule safe and change its time, at places where time goes.

Property: as of `draw`; every draw depends on the schedule, the generator and the weights alone. Each kind has a name,
so that whoever draws can learn which kinds pay. A draw is a list, because some changes take more than one edit: a wait
that goes with the barrier behind it, the two columns of a table of shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits import kinds
from amk.schedule_ir.edits.draw import TRIES, Scene, drawn
from amk.schedule_ir.edits.tree import Branch, Leaf
from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Schedule, Wait

Edits = list[kinds.Edit]
LEVELS: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Share of the signals of a token after which a relaxed wait ends; 0 is the first of them."""
AROUND: Final = 3
"""Steps before and behind a place that share its weight: what is slow is often held up by its neighbours."""


@dataclass
class Hot:
    """The places of a schedule, drawn by `weights` (name of a step -> any measure of time; none: all alike).

    roots: as of `Scene`.
    """

    schedule: Schedule
    rng: np.random.Generator
    weights: Mapping[str, float] = field(default_factory=dict)
    roots: Mapping[str, Branch] | None = None

    def __post_init__(self) -> None:
        self.scene = Scene(self.schedule, self.rng, self.roots)
        own = np.array([self.weights.get(leaf.name, 0.0) for leaf in self.scene.leaves])
        near = np.convolve(own, np.ones(2 * AROUND + 1), "same")[: len(own)] if len(own) > 2 * AROUND else own
        even = max(float(near.mean()), 1e-9)
        self._weight = {leaf.name: float(w) + even for leaf, w in zip(self.scene.leaves, near, strict=True)}

    def leaf(self, among: Sequence[Leaf]) -> Leaf:
        """One of them, by weight; LookupError if there is none."""
        if not among:
            raise LookupError("nothing to draw from")
        weights = np.array([self._weight[leaf.name] for leaf in among])
        return among[int(self.rng.choice(len(among), p=weights / weights.sum()))]

    def parent(self, leaf: Leaf) -> Branch:
        return next(parent for parent, node in self.scene.nodes if node is leaf)


Draw = Callable[[Hot], Edits]


def directed(hot: Hot, kind: str) -> Edits:
    """Edits of that kind (a key of `KINDS`); LookupError if the schedule has no place for it."""
    for _ in range(TRIES):
        try:
            return KINDS[kind](hot)
        except AmkError:
            continue
    raise LookupError(kind)


def _relaxed(hot: Hot) -> tuple[Leaf, Wait]:
    leaf = hot.leaf([n for n in hot.scene.leaves if any(_is_relaxed(w) for w in n.step.waits)])
    return leaf, hot.scene.one([w for w in leaf.step.waits if _is_relaxed(w)])


def _is_relaxed(wait: Wait) -> bool:
    return wait.order == "relaxed" and isinstance(wait.at_least, dict) and wait.at_least.get("t", 0) > 0


def _threshold(hot: Hot) -> Edits:
    """A relaxed wait, which orders nothing, ends after fewer or more of the signals."""
    leaf, wait = _relaxed(hot)
    assert isinstance(wait.at_least, dict)
    each = wait.at_least["t"]
    wanted = sorted({max(1, round(level * each)) for level in LEVELS} - {wait.at_least.get("1", 0)})
    new = wait.at_least | {"1": hot.scene.one(wanted)}
    return [kinds.SetWait(node=leaf.name, counter=wait.counter, at_least=new)]


def _drop_relaxed_wait(hot: Hot) -> Edits:
    """A relaxed wait goes: readers look for the tagged words at once. Its step goes where nothing is left of it."""
    leaf, wait = _relaxed(hot)
    if isinstance(leaf.step.op, WaitOp) and len(leaf.step.waits) == 1:
        return [kinds.Remove(node=leaf.name)]
    return [kinds.DropWait(node=leaf.name, counter=wait.counter)]


def _all_look(hot: Hot) -> Edits:
    """A wait step is run by another role, with or without the barrier behind it."""
    leaf = hot.leaf([n for n in hot.scene.leaves if isinstance(n.step.op, WaitOp)])
    role = hot.scene.one([r.name for r in hot.schedule.roles if r.name != leaf.step.op.role])
    found: Edits = [kinds.SetOp(node=leaf.name, field="role", value=role)]
    nodes = hot.parent(leaf).nodes
    behind = nodes[nodes.index(leaf) + 1 : nodes.index(leaf) + 2]
    if behind and isinstance(behind[0], Leaf) and isinstance(behind[0].step.op, BarrierOp) and hot.rng.random() < 0.5:
        found.append(kinds.Remove(node=behind[0].name))
    return found


def _remove_barrier(hot: Hot) -> Edits:
    return [kinds.Remove(node=hot.leaf([n for n in hot.scene.leaves if isinstance(n.step.op, BarrierOp)]).name)]


def _move(hot: Hot) -> Edits:
    """A step goes up to six places earlier or later."""
    leaf = hot.leaf(hot.scene.leaves)
    other, later = hot.scene.neighbour(hot.parent(leaf), leaf)
    return [kinds.Move(node=leaf.name, to=kinds.Place(at="after" if later else "before", of=other.name))]


def _signal_earlier(hot: Hot) -> Edits:
    """A signal goes elsewhere: relaxed ones order nothing, so they may come before what they announce."""
    leaf = hot.leaf([n for n in hot.scene.leaves if isinstance(n.step.op, SignalOp)])
    other, later = hot.scene.neighbour(hot.parent(leaf), leaf)
    return [kinds.Move(node=leaf.name, to=kinds.Place(at="after" if later else "before", of=other.name))]


def _hold_back(hot: Hot) -> Edits:
    """A product holds back fewer or more refills of its rings, for itself alone."""
    leaf = hot.leaf([n for n in hot.scene.leaves if isinstance(n.step.op, GemvOp)])
    slots = max(s.slots for s in hot.schedule.streams)
    op = leaf.step.op
    assert isinstance(op, GemvOp)
    value = hot.scene.one([v for v in range(slots + 1) if v != op.deferred])
    return [kinds.SetOp(node=leaf.name, field="deferred", value=value)]


def _refill(hot: Hot) -> Edits:
    """A refill asks for another number of chunks, or goes elsewhere."""
    leaf = hot.leaf([n for n in hot.scene.leaves if isinstance(n.step.op, RefillOp)])
    op = leaf.step.op
    assert isinstance(op, RefillOp)
    if hot.rng.random() < 0.3:
        other, later = hot.scene.neighbour(hot.parent(leaf), leaf)
        return [kinds.Move(node=leaf.name, to=kinds.Place(at="after" if later else "before", of=other.name))]
    slots = max(s.slots for s in hot.schedule.streams)
    return [kinds.SetOp(node=leaf.name, field="most", value=hot.scene.one([v for v in range(slots) if v != op.most]))]


def _shares(hot: Hot) -> Edits:
    """All shares of a matrix: the remainder of the division goes to workers all over the chip, to the last ones, or to
    those that another matrix gave less."""
    matrix = hot.scene.one([m for m in ("qkv", "hidden", "gate_up", "lm_head") if f"{m}.count" in hot.schedule.tables])
    count = np.array(hot.schedule.tables[f"{matrix}.count"])
    order = _order_of_workers(hot, len(count))
    low, more = divmod(int(count.sum()), len(count))
    new = np.full(len(count), low)
    new[order[:more]] += 1
    if (new == count).all():
        raise LookupError("the shares are so")
    first = np.concatenate(([0], np.cumsum(new)[:-1]))
    return [
        kinds.SetTable(name=f"{matrix}.count", column=tuple(map(int, new))),
        kinds.SetTable(name=f"{matrix}.first", column=tuple(map(int, first))),
    ]


def _order_of_workers(hot: Hot, workers: int) -> list[int]:
    """Who gets a group more first."""
    choice = int(hot.rng.integers(3))
    if choice == 0:
        stride = hot.scene.one((3, 5, 7))
        return sorted(range(workers), key=lambda w: (w * stride) % workers)
    if choice == 1:
        return list(range(workers))[::-1]
    other = hot.scene.one([n for n in hot.schedule.tables if n.endswith(".count")])
    counts = hot.schedule.tables[other]
    return sorted(range(workers), key=lambda w: (counts[w], -w))


def _ring(hot: Hot) -> Edits:
    """Slots, refill rules or chunks of a ring; columns of the chunks of one matrix."""
    stream = hot.scene.one(hot.schedule.streams)
    if stream.chunks and hot.rng.random() < 0.6:
        matrix = hot.scene.one(sorted(stream.chunks))
        chunk = stream.chunks[matrix]
        columns = hot.scene.one([c for c in (chunk.columns // 2, chunk.columns * 2) if c >= 32])
        chunks = {m: c.model_dump(mode="json") for m, c in stream.chunks.items()}
        chunks[matrix] |= {"columns": columns}
        return [kinds.SetEntry(of="stream", name=stream.name, field="chunks", value=chunks)]
    changes = [("slots", stream.slots + by) for by in (-2, -1, 1, 2) if stream.slots + by > 0]
    changes += [(name, not getattr(stream, name)) for name in ("run_ahead", "refill_fence")]
    name, value = hot.scene.one(changes)
    return [kinds.SetEntry(of="stream", name=stream.name, field=name, value=value)]


def _fuse(hot: Hot) -> Edits:
    """A wait or signal step is merged into a neighbour."""
    leaf = hot.leaf([n for n in hot.scene.leaves if isinstance(n.step.op, WaitOp | SignalOp)])
    nodes = hot.parent(leaf).nodes
    at = nodes.index(leaf)
    near = nodes[at + 1 : at + 5] if isinstance(leaf.step.op, WaitOp) else nodes[max(0, at - 4) : at]
    into = hot.leaf([n for n in near if isinstance(n, Leaf) and not isinstance(n.step.op, BarrierOp)])
    return [kinds.Fuse(node=leaf.name, into=into.name)]


def _any(hot: Hot) -> Edits:
    """Any kind of edit, anywhere."""
    return [drawn(hot.scene, hot.rng)]


KINDS: Final[Mapping[str, Draw]] = {
    "threshold": _threshold,
    "drop hint": _drop_relaxed_wait,
    "all look": _all_look,
    "remove barrier": _remove_barrier,
    "move": _move,
    "move signal": _signal_earlier,
    "held refills": _hold_back,
    "refill": _refill,
    "shares": _shares,
    "ring": _ring,
    "fuse": _fuse,
    "any": _any,
}
