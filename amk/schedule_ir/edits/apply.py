"""Edits made to a schedule: `Schedule -> Schedule`, or a diagnostic that says which edit does not apply and why.

Property: the result depends on the schedule and the list alone; every name in the list is one that the schedule has
before the first edit, or that an edit of the list adds. Whether the result is right is for the verdict to say. Cost:
each edit looks at every node once, and the result is validated once; 0.1 s for four edits of a plan of 50 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Final

from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits import kinds
from amk.schedule_ir.edits.draft import KINDS, Draft, Entry, changed, refuse
from amk.schedule_ir.edits.repairs import repair as repaired_draft
from amk.schedule_ir.edits.shifted import shifted
from amk.schedule_ir.edits.tree import Branch, Leaf, of_node, renamed, tree, walk
from amk.schedule_ir.ops import SignalOp, WaitOp
from amk.schedule_ir.schedule import Schedule, Signal, Step, Wait

SHORT: Final = 4
"""Entries of a column, of which fewer are said one by one."""
Replan = Callable[[Schedule, kinds.Knobs], Schedule]
"""The plan with those settings of the planner, the problem that of the schedule; or an AmkError."""


@dataclass(frozen=True)
class Applied:
    """applied: the edits made, repaired: what was mended after them, in words. roots: the programs of the result, every
    node under the name that it had before, which is the one that further edits of the list use."""

    schedule: Schedule
    applied: tuple[str, ...]
    repaired: tuple[str, ...]
    roots: Mapping[str, Branch]


def apply(
    schedule: Schedule, edits: Sequence[kinds.Edit], *, repair: bool = True, replan: Replan | None = None
) -> Applied:
    """The edited schedule. AMK018 if an edit does not apply, AMK0xx if the result has no meaning (exit 2)."""
    rest = list(edits)
    lines = [edit_text(edit) for edit in edits]
    if rest and isinstance(rest[0], kinds.Knobs):
        first = rest.pop(0)
        assert isinstance(first, kinds.Knobs)
        if replan is None:
            refuse("settings of the planner are changed where a planner is at hand, which is not here")
        schedule = replan(schedule, first)
    draft = Draft(schedule)
    for number, edit in enumerate(rest, len(lines) - len(rest)):
        try:
            _make(edit, draft)
        except AmkError as error:
            found = [replace(d, message=f"edit {number} ({edit.do}): {d.message}") for d in error.diagnostics]
            raise AmkError(found, error.exit_code) from error
    mended = tuple(repaired_draft(draft, rest)) if repair else ()
    return Applied(draft.finish(), tuple(lines), mended, draft.roots)


def edit_text(edit: kinds.Edit) -> str:
    """The edit on one line."""
    fields = {k: v for k, v in edit.model_dump(mode="json", exclude_defaults=True).items() if k != "do"}
    fields = {k: v for k, v in fields.items() if not isinstance(v, dict) or k in ("to", "value", "at_least")}
    said: Mapping[str, Callable[[Any], str]] = {"to": _place, "column": _column}
    words = (f"{k} {said.get(k, str)(v)}" for k, v in fields.items())
    return f"{edit.do.replace('_', ' ')}: {', '.join(words)}"[:300]


def _place(place: Mapping[str, str]) -> str:
    return f"{place['at']} {place['of']}"


def _column(column: Sequence[int]) -> str:
    """What is alike in a row, and what counts on evenly, in few words: `[52 x 1, 6 x 2]`, `[0 to 84 by 2]`."""
    parts, at = [], 0
    while at < len(column):
        end = at + 1
        step = column[end] - column[at] if end < len(column) else 0
        while end < len(column) and column[end] - column[end - 1] == step:
            end += 1
        if end - at < SHORT:
            end = at + 1
            parts.append(str(column[at]))
        else:
            parts.append(f"{column[at]} to {column[end - 1]} by {step}" if step else f"{end - at} x {column[at]}")
        at = end
    return f"[{', '.join(parts)}]"


@singledispatch
def _make(edit: Any, draft: Draft) -> None:
    """Make the edit; one function for each kind."""
    raise TypeError(f"no edit: {edit}")


@_make.register
def _(edit: kinds.Knobs, draft: Draft) -> None:
    refuse("settings of the planner make a new plan: they are the first edit of a list")


@_make.register
def _(edit: kinds.Move, draft: Draft) -> None:
    parent, node = draft.node(edit.node)
    inside = [edit.node, *(inner.name for _, inner in walk(node))] if isinstance(node, Branch) else [edit.node]
    if edit.to.of in inside:
        refuse(f"'{edit.node}' cannot go beside or into itself")
    parent.nodes.remove(node)
    _put(draft, node, edit.to)


@_make.register
def _(edit: kinds.Swap, draft: Draft) -> None:
    (one, a), (other, b) = draft.node(edit.node), draft.node(edit.other)
    for outer, inner in ((a, b), (b, a)):
        if outer is inner or (isinstance(outer, Branch) and any(n is inner for _, n in walk(outer))):
            refuse(f"'{edit.node}' and '{edit.other}' are not two apart from each other")
    i, j = one.nodes.index(a), other.nodes.index(b)
    one.nodes[i], other.nodes[j] = b, a


@_make.register
def _(edit: kinds.Add, draft: Draft) -> None:
    draft.is_new(edit.name)
    _put(draft, of_node(edit.node, edit.name), edit.to)


def _put(draft: Draft, node: Branch | Leaf, place: kinds.Place) -> None:
    if place.at in ("first", "last"):
        inside = draft.branch(place.of)
        inside.nodes.insert(0 if place.at == "first" else len(inside.nodes), node)
        return
    parent, neighbour = draft.node(place.of)
    parent.nodes.insert(parent.nodes.index(neighbour) + (place.at == "after"), node)


@_make.register
def _(edit: kinds.Remove, draft: Draft) -> None:
    parent, node = draft.node(edit.node)
    parent.nodes.remove(node)


@_make.register
def _(edit: kinds.Replace, draft: Draft) -> None:
    draft.leaf(edit.node).step = edit.step


@_make.register
def _(edit: kinds.SetOp, draft: Draft) -> None:
    leaf = draft.leaf(edit.node)
    if edit.field == "op":
        refuse("a step of another op is another step: replace it")
    op = changed(leaf.step.op, edit.field, edit.value, f"op '{leaf.step.op.op}'")
    leaf.step = leaf.step.model_copy(update={"op": op})


@_make.register
def _(edit: kinds.SplitWaits, draft: Draft) -> None:
    leaf = draft.leaf(edit.node)
    if not leaf.step.waits or isinstance(leaf.step.op, WaitOp):
        refuse(f"'{edit.node}' has no waits of its own")
    draft.is_new(edit.name)
    _put(draft, Leaf(edit.name, Step(op=WaitOp(role=leaf.step.op.role), waits=leaf.step.waits)),
         kinds.Place(at="before", of=edit.node))  # fmt: skip
    leaf.step = leaf.step.model_copy(update={"waits": ()})


@_make.register
def _(edit: kinds.SplitSignals, draft: Draft) -> None:
    leaf = draft.leaf(edit.node)
    if not leaf.step.signals or isinstance(leaf.step.op, SignalOp):
        refuse(f"'{edit.node}' has no signals of its own")
    draft.is_new(edit.name)
    _put(draft, Leaf(edit.name, Step(op=SignalOp(role=leaf.step.op.role), signals=leaf.step.signals)),
         kinds.Place(at="after", of=edit.node))  # fmt: skip
    leaf.step = leaf.step.model_copy(update={"signals": ()})


@_make.register
def _(edit: kinds.Fuse, draft: Draft) -> None:
    parent, node = draft.node(edit.node)
    into = draft.leaf(edit.into)
    if node is into or not isinstance(node, Leaf) or not isinstance(node.step.op, WaitOp | SignalOp):
        refuse(f"'{edit.node}' is no wait or signal step beside '{edit.into}'")
    parent.nodes.remove(node)
    entries = {"waits": (*into.step.waits, *node.step.waits), "signals": (*into.step.signals, *node.step.signals)}
    if max(map(len, entries.values())) > 64:
        refuse(f"'{edit.into}' would have more than 64 waits or signals")
    into.step = into.step.model_copy(update=entries)


@_make.register
def _(edit: kinds.SplitLoop, draft: Draft) -> None:
    parent, loop = draft.node(edit.node)
    if not isinstance(loop, Branch) or loop.count is None or edit.count >= loop.count:
        refuse(f"'{edit.node}' is no loop of more than {edit.count} rounds")
    draft.is_new(edit.name)
    second = renamed(loop, edit.name)
    assert isinstance(second, Branch)
    second.count, loop.count = loop.count - edit.count, edit.count
    for _, node in walk(second):
        if isinstance(node, Leaf):
            node.step = shifted(node.step, loop.var, edit.count)
    parent.nodes.insert(parent.nodes.index(loop) + 1, second)


@_make.register
def _(edit: kinds.SetLoop, draft: Draft) -> None:
    loop = draft.branch(edit.node)
    if not loop.var:
        refuse(f"'{edit.node}' is a program, not a loop")
    loop.count = edit.count


@_make.register
def _(edit: kinds.AddWait, draft: Draft) -> None:
    leaf = draft.leaf(edit.node)
    _listed(leaf, "waits", (*leaf.step.waits, edit.wait))


@_make.register
def _(edit: kinds.AddSignal, draft: Draft) -> None:
    leaf = draft.leaf(edit.node)
    _listed(leaf, "signals", (*leaf.step.signals, edit.signal))


@_make.register(kinds.DropWait)
@_make.register(kinds.DropSignal)
def _(edit: kinds.DropWait | kinds.DropSignal, draft: Draft) -> None:
    kind = "waits" if isinstance(edit, kinds.DropWait) else "signals"
    leaf, at, entries = _hand_off(edit, kind, draft)
    _listed(leaf, kind, (*entries[:at], *entries[at + 1 :]))


@_make.register(kinds.SetWait)
@_make.register(kinds.SetSignal)
def _(edit: kinds.SetWait | kinds.SetSignal, draft: Draft) -> None:
    kind = "waits" if isinstance(edit, kinds.SetWait) else "signals"
    leaf, at, entries = _hand_off(edit, kind, draft)
    names = ("at_least", "order", "index") if kind == "waits" else ("add", "order", "index")
    new = {name: value for name in names if (value := getattr(edit, name)) is not None}
    _listed(leaf, kind, (*entries[:at], entries[at].model_copy(update=new), *entries[at + 1 :]))


HandOffEdit = kinds.DropWait | kinds.DropSignal | kinds.SetWait | kinds.SetSignal


def _hand_off(edit: HandOffEdit, kind: str, draft: Draft) -> tuple[Leaf, int, tuple[Wait, ...] | tuple[Signal, ...]]:
    """(step, which of its waits or signals, all of them)."""
    leaf = draft.leaf(edit.node)
    entries: tuple[Wait, ...] | tuple[Signal, ...] = getattr(leaf.step, kind)
    found = [i for i, counter in enumerate([e.counter for e in entries]) if counter == edit.counter]
    if edit.nth >= len(found):
        refuse(f"'{edit.node}' has {len(found)} {kind} on '{edit.counter}', number {edit.nth} is none of them")
    return leaf, found[edit.nth], entries


def _listed(leaf: Leaf, kind: str, entries: Sequence[Wait | Signal]) -> None:
    if len(entries) > 64:
        refuse(f"'{leaf.name}' would have more than 64 {kind}")
    leaf.step = leaf.step.model_copy(update={kind: tuple(entries)})


@_make.register
def _(edit: kinds.SetEntry, draft: Draft) -> None:
    if edit.field in ("name", "body"):
        refuse(f"'{edit.field}' of a {edit.of} is its identity or its steps, which other edits change")
    entry = draft.entry(edit.of, edit.name)
    draft.entries[edit.of][edit.name] = changed(entry, edit.field, edit.value, f"{edit.of} '{edit.name}'")


@_make.register
def _(edit: kinds.AddEntry, draft: Draft) -> None:
    kind = next(kind for kind, (_, cls) in KINDS.items() if isinstance(edit.entry, cls))
    known, name = draft.entries[kind], edit.entry.name
    if name in known:
        refuse(f"the schedule has a {kind} '{name}'")
    if edit.after is not None:
        draft.entry(kind, edit.after)
    before = list(known.items())
    at = 0 if edit.after is None else 1 + list(known).index(edit.after)
    entry: Entry = edit.entry
    draft.entries[kind] = dict([*before[:at], (name, entry), *before[at:]])
    if kind == "program":
        draft.roots[name] = tree(draft.entries[kind][name])


@_make.register
def _(edit: kinds.RemoveEntry, draft: Draft) -> None:
    draft.entry(edit.of, edit.name)
    del draft.entries[edit.of][edit.name]
    if edit.of == "program":
        del draft.roots[edit.name]


@_make.register
def _(edit: kinds.SetHeader, draft: Draft) -> None:
    if edit.of == "schedule":
        if edit.field not in ("name", "plan"):
            refuse(f"'{edit.field}' of a schedule is part of the problem, or has edits of its own")
        draft.header[edit.field] = edit.value
        return
    draft.header[edit.of] = changed(draft.header[edit.of], edit.field, edit.value, edit.of)


@_make.register
def _(edit: kinds.SetTable, draft: Draft) -> None:
    if edit.remove:
        draft.tables.pop(edit.name, None)
        return
    if edit.column is None and edit.name not in draft.tables:
        refuse(f"the schedule has no table '{edit.name}'")
    column = list(draft.tables[edit.name] if edit.column is None else edit.column)
    for worker, value in edit.entries.items():
        if int(worker) >= len(column):
            refuse(f"table '{edit.name}' has no entry {worker}")
        column[int(worker)] = value
    draft.tables[edit.name] = tuple(column)


@_make.register
def _(edit: kinds.Share, draft: Draft) -> None:
    names = f"{edit.matrix}.first", f"{edit.matrix}.count"
    if any(name not in draft.tables for name in names):
        refuse(f"the schedule has no shares of '{edit.matrix}'")
    first, count = (list(draft.tables[name]) for name in names)
    if edit.worker + 1 >= len(count):
        refuse(f"worker {edit.worker} has no next one to share with")
    count[edit.worker] -= edit.groups
    count[edit.worker + 1] += edit.groups
    first[edit.worker + 1] -= edit.groups
    if min(count) < 0:
        refuse(f"a share of '{edit.matrix}' would be negative")
    draft.tables |= {names[0]: tuple(first), names[1]: tuple(count)}
