"""Random edits of a schedule: each of a kind that the schedule has a place for, most of them near what it does.

Property: a drawn edit is well-formed and names what is there; whether the result is a schedule, and a safe one, is
for `apply` and the verdict to say. The draw depends on the schedule and the generator alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits import kinds
from amk.schedule_ir.edits.tree import Branch, Leaf, tree, walk
from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.schedule import Schedule, Step

TRIES = 100
REACH = 6
"""Steps that a move passes at the most."""
ALIGN = 128


class Scene:
    """The places of one schedule. roots: its programs, if their nodes have names of their own (`Applied.roots`)."""

    def __init__(self, schedule: Schedule, rng: np.random.Generator, roots: Mapping[str, Branch] | None = None) -> None:
        self.schedule, self._rng = schedule, rng
        trees = roots.values() if roots is not None else map(tree, schedule.programs)
        self.nodes = [(p, n) for root in trees for p, n in walk(root)]
        self.leaves = [n for _, n in self.nodes if isinstance(n, Leaf)]

    def one(self, among: Sequence[Any]) -> Any:
        """One of them; LookupError if there is none."""
        if not among:
            raise LookupError("nothing to draw from")
        return among[int(self._rng.integers(len(among)))]

    def neighbour(self, parent: Branch, node: Branch | Leaf) -> tuple[Branch | Leaf, bool]:
        """(a node of the same body up to REACH away, whether it comes later)."""
        at = parent.nodes.index(node)
        near = [i for i in range(max(0, at - REACH), min(len(parent.nodes), at + REACH + 1)) if i != at]
        found = self.one(near)
        return parent.nodes[found], found > at


def draw(schedule: Schedule, rng: np.random.Generator) -> kinds.Edit:
    """One edit, its kind drawn first; LookupError if the schedule has a place for none."""
    return drawn(Scene(schedule, rng), rng)


def drawn(scene: Scene, rng: np.random.Generator) -> kinds.Edit:
    """As `draw`."""
    for _ in range(TRIES):
        try:
            return DRAWS[int(rng.integers(len(DRAWS)))](scene)
        except (LookupError, AmkError):
            continue
    raise LookupError("no kind of edit has a place in the schedule")


def _move(scene: Scene) -> kinds.Edit:
    parent, node = scene.one(scene.nodes)
    other, later = scene.neighbour(parent, node)
    return kinds.Move(node=node.name, to=kinds.Place(at="after" if later else "before", of=other.name))


def _swap(scene: Scene) -> kinds.Edit:
    parent, node = scene.one(scene.nodes)
    other, _ = scene.neighbour(parent, node)
    return kinds.Swap(node=node.name, other=other.name)


def _remove(scene: Scene) -> kinds.Edit:
    sync = [n for n in scene.leaves if isinstance(n.step.op, BarrierOp | WaitOp | SignalOp)]
    return kinds.Remove(node=scene.one([*sync, *sync, *sync, *scene.leaves]).name)


def _barrier(scene: Scene) -> kinds.Edit:
    """A barrier like one that there is."""
    step = scene.one([n.step for n in scene.leaves if isinstance(n.step.op, BarrierOp)])
    _, beside = scene.one(scene.nodes)
    return kinds.Add(name="+barrier", node=step, to=kinds.Place(at=scene.one(("before", "after")), of=beside.name))


def _role(scene: Scene) -> kinds.Edit:
    leaf = scene.one(scene.leaves)
    other = scene.one([r.name for r in scene.schedule.roles if r.name != leaf.step.op.role])
    return kinds.SetOp(node=leaf.name, field="role", value=other)


def _field(scene: Scene) -> kinds.Edit:
    """What another step has in the same field, or a number near."""
    leaf = scene.one(scene.leaves)
    shown = leaf.step.op.model_dump(mode="json")
    field = scene.one([name for name in shown if name not in ("op", "role")])
    others = [n.step.op.model_dump(mode="json")[field] for n in scene.leaves if field in type(n.step.op).model_fields]
    value = shown[field]
    near = [value + 1, value - 1, 2 * value] if type(value) is int else []
    return kinds.SetOp(node=leaf.name, field=field, value=scene.one([v for v in (*others, *near) if v != value]))


def _waits(scene: Scene) -> list[Leaf]:
    return [n for n in scene.leaves if n.step.waits]


def _signals(scene: Scene) -> list[Leaf]:
    return [n for n in scene.leaves if n.step.signals]


def _threshold(scene: Scene) -> kinds.Edit:
    leaf = scene.one(_waits(scene))
    wait = scene.one(leaf.step.waits)
    terms = {"1": wait.at_least} if isinstance(wait.at_least, int) else wait.at_least
    symbol = scene.one(["1", *terms])
    by = scene.one((-8, -4, -2, -1, 1, 2, scene.schedule.launch.workers, -scene.schedule.launch.workers))
    return kinds.SetWait(node=leaf.name, counter=wait.counter, at_least=terms | {symbol: terms.get(symbol, 0) + by})


def _wait_order(scene: Scene) -> kinds.Edit:
    leaf = scene.one(_waits(scene))
    wait = scene.one(leaf.step.waits)
    other = "relaxed" if wait.order == "acquire" else "acquire"
    return kinds.SetWait.model_validate({"node": leaf.name, "counter": wait.counter, "order": other})


def _signal_order(scene: Scene) -> kinds.Edit:
    leaf = scene.one(_signals(scene))
    signal = scene.one(leaf.step.signals)
    other = "relaxed" if signal.order == "release" else "release"
    return kinds.SetSignal.model_validate({"node": leaf.name, "counter": signal.counter, "order": other})


def _drop_wait(scene: Scene) -> kinds.Edit:
    leaf = scene.one(_waits(scene))
    return kinds.DropWait(node=leaf.name, counter=scene.one(leaf.step.waits).counter)


def _drop_signal(scene: Scene) -> kinds.Edit:
    leaf = scene.one(_signals(scene))
    return kinds.DropSignal(node=leaf.name, counter=scene.one(leaf.step.signals).counter)


def _add_wait(scene: Scene) -> kinds.Edit:
    """A wait that there is, also somewhere else."""
    wait = scene.one(scene.one(_waits(scene)).step.waits)
    return kinds.AddWait(node=scene.one(scene.leaves).name, wait=wait)


def _split(scene: Scene) -> kinds.Edit:
    work = [n for n in scene.leaves if not isinstance(n.step.op, WaitOp | SignalOp)]
    leaf = scene.one([n for n in work if n.step.waits or n.step.signals])
    kind = kinds.SplitWaits if leaf.step.waits else kinds.SplitSignals
    return kind(node=leaf.name, name="+split")


def _fuse(scene: Scene) -> kinds.Edit:
    """A wait step into a later one, a signal step into an earlier one."""
    parent, node = scene.one([(p, n) for p, n in scene.nodes if isinstance(n, Leaf) and _is_hand_off(n.step)])
    at = parent.nodes.index(node)
    waiting = isinstance(node.step.op, WaitOp)
    near = parent.nodes[at + 1 : at + 1 + REACH] if waiting else parent.nodes[max(0, at - REACH) : at]
    into = scene.one([n for n in near if isinstance(n, Leaf) and not isinstance(n.step.op, BarrierOp)])
    return kinds.Fuse(node=node.name, into=into.name)


def _is_hand_off(step: Step) -> bool:
    return isinstance(step.op, WaitOp | SignalOp)


def _split_loop(scene: Scene) -> kinds.Edit:
    loop = scene.one([n for _, n in scene.nodes if isinstance(n, Branch) and (n.count or 0) > 1])
    return kinds.SplitLoop(node=loop.name, count=scene.one(range(1, loop.count)), name="+loop")


def _hand_off(scene: Scene) -> kinds.Edit:
    counter = scene.one(scene.schedule.counters)
    other = "hint" if counter.handoff == "fenced" else "fenced"
    return kinds.SetEntry(of="counter", name=counter.name, field="handoff", value=other)


def _words(scene: Scene) -> kinds.Edit:
    """Tagged words, or the tag of others."""
    buffers = [b for b in scene.schedule.buffers if b.space == "global" and b.role == "scratch"]
    buffer = scene.one(buffers)
    tag = scene.one([b.tag for b in buffers if b.tag != buffer.tag] or [None])
    field, value = scene.one([("tagged", not buffer.tagged), ("tag", tag)])
    return kinds.SetEntry(of="buffer", name=buffer.name, field=field, value=value)


def _offset(scene: Scene) -> kinds.Edit:
    """A shared buffer at another's offset, behind another, or a little aside."""
    shared = [b for b in scene.schedule.buffers if b.space == "shared" and b.offset is not None]
    buffer, other = scene.one(shared), scene.one(shared)
    behind = -(-((other.offset or 0) + other.bytes) // ALIGN) * ALIGN
    places = {other.offset, behind, (buffer.offset or 0) + ALIGN, max(0, (buffer.offset or 0) - ALIGN)}
    return kinds.SetEntry(
        of="buffer", name=buffer.name, field="offset", value=scene.one(sorted(p for p in places if p != buffer.offset))
    )


def _ring(scene: Scene) -> kinds.Edit:
    stream = scene.one(scene.schedule.streams)
    changes = [("slots", stream.slots + by) for by in (-2, -1, 1, 2) if stream.slots + by > 0]
    changes += [(name, not getattr(stream, name)) for name in ("run_ahead", "refill_fence")]
    changes += [("chunk_k", stream.chunk_k + by) for by in (-32, 32) if stream.chunk_k + by > 0]
    field, value = scene.one(changes)
    return kinds.SetEntry(of="stream", name=stream.name, field=field, value=value)


def _role_size(scene: Scene) -> kinds.Edit:
    role = scene.one(scene.schedule.roles)
    field, value = scene.one([("count", role.count + 1), ("count", max(1, role.count - 1)), ("first", role.first + 1)])
    return kinds.SetEntry(of="role", name=role.name, field=field, value=value)


def _share(scene: Scene) -> kinds.Edit:
    matrix = scene.one(("qkv", "hidden", "gate_up", "lm_head"))
    worker = scene.one(range(scene.schedule.launch.workers - 1))
    return kinds.Share(matrix=matrix, worker=worker, groups=scene.one((-2, -1, 1, 2)))


def _cache(scene: Scene) -> kinds.Edit:
    kv = scene.schedule.kv
    field, value = scene.one([("block", kv.block * 2), ("block", max(1, kv.block // 2)), ("splits", kv.splits + 1)])
    return kinds.SetHeader(of="kv", field=field, value=value)


DRAWS: tuple[Callable[[Scene], kinds.Edit], ...] = (
    _move, _move, _move, _swap, _remove, _remove, _barrier, _role, _field, _threshold, _threshold, _wait_order,
    _signal_order, _drop_wait, _drop_signal, _add_wait, _split, _fuse, _split_loop, _hand_off, _words, _offset, _ring,
    _role_size, _share, _share, _cache,
)  # fmt: skip
