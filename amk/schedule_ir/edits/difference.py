"""The edits that turn one schedule into another.

Property: `apply(a, difference(a, b), repair=False)` is b, for every two schedules of one problem. Steps are matched by
name, then equal steps by what they say; what is matched is moved and changed, the rest removed and added. Moves are the
fewest for each body: what is in a longest increasing run stays (Schensted; n log n).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from amk.schedule_ir.edits import kinds
from amk.schedule_ir.edits.draft import KINDS, refuse
from amk.schedule_ir.edits.tree import Branch, Leaf, tree, walk
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Loop, Schedule

PROBLEM = ("version", "model", "target", "dtype", "batch", "live", "rows", "accepts", "tree", "headless", "pools")
"""What no edit changes."""
Name = TypeVar("Name", bound=Hashable)


def difference(before: Schedule, after: Schedule) -> tuple[kinds.Edit, ...]:
    """Edits that turn `before` into `after`; AMK018 if they are not about one model, target, batch and rows."""
    for name in PROBLEM:
        if getattr(before, name) != getattr(after, name):
            refuse(f"the schedules differ in '{name}', which no edit changes")
    return (*_header(before, after), *_tables(before, after), *_entries(before, after), *_steps(before, after))


def _header(before: Schedule, after: Schedule) -> Iterator[kinds.Edit]:
    for name in ("name", "plan"):
        if getattr(before, name) != getattr(after, name):
            yield kinds.SetHeader(of="schedule", field=name, value=getattr(after, name))
    for of in ("launch", "kv"):
        for field, value in _fields(getattr(before, of), getattr(after, of)):
            yield kinds.SetHeader.model_validate({"of": of, "field": field, "value": value})


def _fields(before: Any, after: Any) -> Iterator[tuple[str, Any]]:
    old, new = (_dump(entry) for entry in (before, after))
    for field, value in new.items():
        if old[field] != value:
            yield field, value


def _dump(entry: Any) -> dict[str, Any]:
    """With the fields that files leave out."""
    shown = entry.model_dump(mode="json")
    return {n: shown[n] if n in shown else to_jsonable_python(getattr(entry, n)) for n in type(entry).model_fields}


def _tables(before: Schedule, after: Schedule) -> Iterator[kinds.Edit]:
    for name in before.tables.keys() - after.tables.keys():
        yield kinds.SetTable(name=name, remove=True)
    for name, column in after.tables.items():
        old = before.tables.get(name)
        if old == column:
            continue
        if old is None or len(old) != len(column):
            yield kinds.SetTable(name=name, column=column)
        else:
            entries = {str(w): v for w, v in enumerate(column) if old[w] != v}
            yield kinds.SetTable(name=name, entries=entries)


def _entries(before: Schedule, after: Schedule) -> Iterator[kinds.Edit]:
    for kind, (key, _) in KINDS.items():
        old, new = ({e.name: e for e in getattr(s, key)} for s in (before, after))
        common = [name for name in old if name in new]
        keep = set(in_both_orders([name for name in new if name in old], common))
        for name in old:
            if name not in keep:
                yield kinds.RemoveEntry.model_validate({"of": kind, "name": name})
        last = None
        for name, entry in new.items():
            if name not in keep:
                yield kinds.AddEntry(entry=entry, after=last)
            else:
                for field, value in _fields(old[name], entry):
                    if (kind, field) != ("program", "body"):
                        yield kinds.SetEntry.model_validate({"of": kind, "name": name, "field": field, "value": value})
            last = name


def in_both_orders(target: Sequence[Name], now: Sequence[Name]) -> list[Name]:
    """The longest list of names that are in the order of both; `now` has all of `target`."""
    rank = {name: i for i, name in enumerate(now)}
    tails: list[int] = []
    chains: list[list[Name]] = []
    for name in target:
        at = bisect_left(tails, rank[name])
        chain = [*(chains[at - 1] if at else []), name]
        tails[at : at + 1], chains[at : at + 1] = [rank[name]], [chain]
    return chains[-1] if chains else []


def _steps(before: Schedule, after: Schedule) -> Iterator[kinds.Edit]:
    """Edits of the programs that both have and neither `_entries` declares anew."""
    declared = {e.entry.name for e in _entries(before, after) if isinstance(e, kinds.AddEntry)}
    old = {p.name: tree(p) for p in before.programs if p.name not in declared}
    new = {p.name: tree(p) for p in after.programs if p.name in old}
    yield from _Match(old, new).edits()


class _Match:
    """name: what a node of the new trees is called in the edits; old: what it was, if it was."""

    def __init__(self, before: dict[str, Branch], after: dict[str, Branch]) -> None:
        self._before, self._after = before, after
        self._old = {n.name: (p.name, n) for root in before.values() if root.name in after for p, n in walk(root)}
        self._name: dict[str, str] = {name: name for name in after}
        self._pair()

    def _pair(self) -> None:
        nodes = [n for root in self._after.values() for _, n in walk(root)]
        taken = set()
        for new, was in self._barriers():
            self._name[new] = was
            taken.add(was)
        for node in nodes:
            old = self._old.get(node.name)
            if old is not None and _alike(old[1], node) and node.name not in self._name and node.name not in taken:
                self._name[node.name] = node.name
                taken.add(node.name)
        free = [n for _, n in self._old.values() if n.name not in taken and isinstance(n, Leaf)]
        added = 0
        for node in nodes:
            if node.name in self._name:
                continue
            same = next((n for n in free if isinstance(node, Leaf) and n.step == node.step), None)
            if same is not None:
                free.remove(same)
                self._name[node.name] = same.name
            else:
                added += 1
                self._name[node.name] = f"+{added}"

    def _barriers(self) -> Iterator[tuple[str, str]]:
        """(new name, old name) of equal barriers at the same place among the steps of a body: they are named after
        their neighbours, which may have moved."""
        branches = {b.name: b for root in self._before.values() for b in _branches(root)}
        for branch in (b for root in self._after.values() for b in _branches(root)):
            if (old := branches.get(branch.name)) is None:
                continue
            was, now = [_key(n) for n in old.nodes], [_key(n) for n in branch.nodes]
            for block in SequenceMatcher(None, was, now, autojunk=False).get_matching_blocks():
                for i, j in zip(
                    range(block.a, block.a + block.size), range(block.b, block.b + block.size), strict=True
                ):
                    if _is_barrier(branch.nodes[j]):
                        yield branch.nodes[j].name, old.nodes[i].name

    def edits(self) -> Iterator[kinds.Edit]:
        """Loops are added before what goes into them, and removed after what leaves them."""
        for root in self._after.values():
            yield from self._placed(root)
        kept = set(self._name.values())
        gone = [(parent, n) for parent, n in self._old.values() if n.name not in kept]
        removed = {n.name for _, n in gone}
        yield from (kinds.Remove(node=n.name) for parent, n in gone if parent not in removed)

    def _placed(self, branch: Branch) -> Iterator[kinds.Edit]:
        within = self._name[branch.name]
        here = [self._name[n.name] for n in branch.nodes]
        before = [n for n, (parent, _) in self._old.items() if parent == within and n in here]
        stay = set(in_both_orders([name for name in here if name in before], before))
        last: kinds.Place = kinds.Place(at="first", of=within)
        for node, name in zip(branch.nodes, here, strict=True):
            if name not in self._old:
                yield kinds.Add(name=name, node=_bare(node), to=last)
            else:
                if name not in stay:
                    yield kinds.Move(node=name, to=last)
                yield from _changes(name, self._old[name][1], node)
            if isinstance(node, Branch):
                yield from self._placed(node)
            last = kinds.Place(at="after", of=name)


def _alike(old: Branch | Leaf, new: Branch | Leaf) -> bool:
    if isinstance(old, Leaf) and isinstance(new, Leaf):
        return old.step.op.op == new.step.op.op
    return isinstance(old, Branch) and isinstance(new, Branch) and old.var == new.var


def _branches(root: Branch) -> list[Branch]:
    return [root, *(n for _, n in walk(root) if isinstance(n, Branch))]


def _is_barrier(node: Branch | Leaf) -> bool:
    return isinstance(node, Leaf) and isinstance(node.step.op, BarrierOp)


def _key(node: Branch | Leaf) -> str:
    """Equal for equal barriers, and for what has one name."""
    return node.step.model_dump_json() if isinstance(node, Leaf) and _is_barrier(node) else node.name


def _bare(node: Branch | Leaf) -> Any:
    return (
        node.step if isinstance(node, Leaf) else Loop.model_validate({"var": node.var, "count": node.count, "body": ()})
    )


def _changes(name: str, old: Branch | Leaf, new: Branch | Leaf) -> Iterator[kinds.Edit]:
    if isinstance(old, Branch) and isinstance(new, Branch):
        if old.count != new.count:
            yield kinds.SetLoop(node=name, count=new.count)
    elif isinstance(old, Leaf) and isinstance(new, Leaf) and old.step != new.step:
        same = old.step.model_copy(update={"op": new.step.op}) == new.step
        if not same:
            yield from _hand_offs(name, old, new)
            return
        for field, value in _fields(old.step.op, new.step.op):
            yield kinds.SetOp(node=name, field=field, value=value)


def _hand_offs(name: str, old: Leaf, new: Leaf) -> Iterator[kinds.Edit]:
    """One changed threshold as such, everything else as another step in the place."""
    a, b = old.step, new.step
    plain = b == a.model_copy(update={"waits": b.waits}) and len(a.waits) == len(b.waits)
    counters = [w.counter for w in a.waits]
    levels = [w.model_copy(update={"at_least": v.at_least}) for w, v in zip(a.waits, b.waits, strict=False)]
    if plain and tuple(levels) == b.waits and len(set(counters)) == len(counters):
        for was, now in zip(a.waits, b.waits, strict=True):
            if was != now:
                yield kinds.SetWait(node=name, counter=now.counter, at_least=now.at_least)
        return
    yield kinds.Replace(node=name, step=b)
