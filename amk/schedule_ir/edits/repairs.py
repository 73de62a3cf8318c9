"""What edits break is mended where there is one way to mend it; everything else is left to the verdict.

* A wait for all that a token signals, no more and no less, waits for all again after their number has changed.
* Waits and signals of a counter whose hand-off changed are acquire and release (fenced), or relaxed (hint).
* The `agents` of a barrier that met all of a role are all of that role again.
* A ring, and its mbarriers, have as many slots as their stream.
* A step between two equal barriers takes the second along when it goes where no barrier of the kind follows it.
* The launch has the shared memory that its buffers reach to.

What an edit of the list says itself is not touched. Each function says what it mended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amk.schedule_ir.edits import kinds
from amk.schedule_ir.edits.draft import Draft, changed
from amk.schedule_ir.edits.thresholds import full_joins, key_of, totals
from amk.schedule_ir.edits.tree import Branch, Leaf, tree, walk
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.ops import BarrierOp

ALIGN = 128
"""Of the shared memory of a launch."""


def repair(draft: Draft, edits: Sequence[kinds.Edit]) -> Iterator[str]:
    """Mend the draft in place; yields what was mended, in words."""
    yield from _barriers_beside(draft, edits)
    yield from _orders(draft, edits)
    yield from _meetings(draft, edits)
    yield from _rings(draft, edits)
    yield from _room(draft, edits)
    yield from _thresholds(draft, edits)


def _leaves(draft: Draft) -> Iterator[Leaf]:
    for root in draft.roots.values():
        for _, node in walk(root):
            if isinstance(node, Leaf):
                yield node


def _barriers_beside(draft: Draft, edits: Sequence[kinds.Edit]) -> Iterator[str]:
    for edit in edits:
        if isinstance(edit, kinds.Move) and (second := _between(draft, edit.node)) is not None:
            parent, node = draft.node(edit.node)
            here, there = _find(draft, second.name), parent.nodes.index(node)
            following = parent.nodes[there + 1 : there + 2]
            if here is None or any(isinstance(n, Leaf) and n.step == second.step for n in following):
                continue
            here.nodes.remove(second)
            parent.nodes.insert(parent.nodes.index(node) + 1, second)
            yield f"'{second.name}' goes along behind '{edit.node}'"


def _find(draft: Draft, name: str) -> Branch | None:
    """What the node of that name is in, None if it is gone."""
    for root in draft.roots.values():
        for parent, node in walk(root):
            if node.name == name:
                return parent
    return None


def _between(draft: Draft, name: str) -> Leaf | None:
    """The barrier behind the step, if an equal one stood before it when the edits began; as the draft has it."""
    for program in draft.schedule.programs:
        for parent, node in walk(tree(program)):
            if node.name != name:
                continue
            at = parent.nodes.index(node)
            beside = [n for n in parent.nodes[max(at - 1, 0) : at + 2] if isinstance(n, Leaf) and n is not node]
            if len(beside) == 2 and beside[0].step == beside[1].step and isinstance(beside[0].step.op, BarrierOp):
                now = [leaf for leaf in _leaves(draft) if leaf.name == beside[1].name]
                return now[0] if now and now[0].step == beside[1].step else None
    return None


def _orders(draft: Draft, edits: Sequence[kinds.Edit]) -> Iterator[str]:
    before = {c.name: c.handoff for c in draft.schedule.counters}
    new = {n: c.handoff for n, c in draft.entries["counter"].items() if before.get(n, c.handoff) != c.handoff}
    kept = {(e.node, e.counter) for e in edits if isinstance(e, kinds.SetWait | kinds.SetSignal) and e.order}
    for leaf in _leaves(draft):
        for kind, strong in (("waits", "acquire"), ("signals", "release")):
            entries = getattr(leaf.step, kind)
            mended = []
            for entry in entries:
                order = {"fenced": strong, "hint": "relaxed"}.get(new.get(entry.counter, ""), entry.order)
                free = (leaf.name, entry.counter) not in kept
                mended.append(entry.model_copy(update={"order": order}) if free else entry)
            if tuple(mended) != entries:
                leaf.step = leaf.step.model_copy(update={kind: tuple(mended)})
                yield f"{kind} of '{leaf.name}' have the order of the counter's hand-off"


def _meetings(draft: Draft, edits: Sequence[kinds.Edit]) -> Iterator[str]:
    before = {r.name: r.count for r in draft.schedule.roles}
    said = {e.node for e in edits if isinstance(e, kinds.SetOp) and e.field == "agents"}
    old = {n.name: n.step for p in draft.schedule.programs for _, n in walk(tree(p)) if isinstance(n, Leaf)}
    for leaf in _leaves(draft):
        op = leaf.step.op
        was = old[leaf.name].op if leaf.name in old else None
        if not isinstance(op, BarrierOp) or not isinstance(was, BarrierOp) or leaf.name in said:
            continue
        role = draft.entries["role"].get(op.role)
        if role is not None and was.agents == before.get(was.role) and op.agents == was.agents != role.count:
            leaf.step = leaf.step.model_copy(update={"op": op.model_copy(update={"agents": role.count})})
            yield f"{role.count} agents meet at '{leaf.name}'"


def _rings(draft: Draft, edits: Sequence[kinds.Edit]) -> Iterator[str]:
    old = {s.name: s for s in draft.schedule.streams}
    said = {e.name for e in edits if isinstance(e, kinds.SetEntry) and (e.of, e.field) == ("buffer", "shape")}
    for name, stream in draft.entries["stream"].items():
        if name not in old or old[name].slots == stream.slots:
            continue
        for buffer in (draft.entries["buffer"].get(b) for b in (stream.ring, stream.full) if b and b not in said):
            if buffer is None or buffer.shape.count(old[name].slots) != 1:
                continue
            shape = [stream.slots if size == old[name].slots else size for size in buffer.shape]
            draft.entries["buffer"][buffer.name] = changed(buffer, "shape", shape, f"buffer '{buffer.name}'")
            yield f"'{buffer.name}' has {stream.slots} slots"


def _room(draft: Draft, edits: Sequence[kinds.Edit]) -> Iterator[str]:
    if any(isinstance(e, kinds.SetHeader) and e.field == "shared_bytes" for e in edits):
        return
    shared = [b for b in draft.entries["buffer"].values() if b.space == "shared" and b.offset is not None]
    end = max((b.offset + b.bytes for b in shared), default=0)
    if end > draft.header["launch"].shared_bytes:
        need = -(-end // ALIGN) * ALIGN
        draft.header["launch"] = changed(draft.header["launch"], "shared_bytes", need, "launch")
        yield f"the launch has {need} bytes of shared memory"


def _thresholds(draft: Draft, edits: Sequence[kinds.Edit]) -> Iterator[str]:
    said = {(e.node, e.counter) for e in edits if isinstance(e, kinds.SetWait) and e.at_least is not None}
    if not _counted(draft) or not (joins := full_joins(draft.schedule)):
        return
    sums_by_counter = totals(draft.finish())
    for leaf in _leaves(draft):
        for i, wait in enumerate(leaf.step.waits):
            counts = sums_by_counter.get(wait.counter)
            if counts is None or key_of(leaf.name, wait) not in joins or (leaf.name, wait.counter) in said:
                continue
            sums = {int(n) for n in counts}
            new: Expr = {"t": min(sums), "1": min(sums)}
            if len(sums) == 1 and sums != {0} and wait.at_least != new:
                waits = (*leaf.step.waits[:i], wait.model_copy(update={"at_least": new}), *leaf.step.waits[i + 1 :])
                leaf.step = leaf.step.model_copy(update={"waits": waits})
                yield f"'{leaf.name}' waits for {min(sums)} signals a token on '{wait.counter}'"


def _counted(draft: Draft) -> bool:
    """Whether something changed that the number of signals depends on: who gives them, how often, where, how many."""

    def givers(roots: Mapping[str, Branch]) -> list[object]:
        return [
            (node.count if isinstance(node, Branch) else (node.step.op.role, node.step.signals))
            for root in roots.values()
            for _, node in walk(root)
            if isinstance(node, Branch) or node.step.signals
        ]

    before = {p.name: tree(p) for p in draft.schedule.programs}
    same = draft.schedule.roles == tuple(draft.entries["role"].values()) and draft.schedule.tables == draft.tables
    return not same or givers(before) != givers(draft.roots)
