"""The steps of a schedule as a tree of named nodes.

The name of a step is its program, the loops around it and what it is: `decode/t/l/gemv.qkv`. What it is: the kind of
op; then the matrix, hidden state or round it is about, or the counter of a `wait` or `signal` step; then the layer,
where that is a number. A barrier is named after the step before it: `barrier@gemv.qkv`; `barrier@start` is the first of
its body. Of equals in a body the second is `...#2`, of barriers `barrier2@...`. So a name survives every edit that does
not touch the step, an equal before it in the same body, or, for a barrier, the step before it.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass, field

from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Loop, Node, Program, Step

ABOUT = ("matrix", "h", "round", "counted")
"""Fields that tell steps of one op apart, the most telling first."""


@dataclass(eq=False)
class Branch:
    """A loop, or the body of a program (var "")."""

    name: str
    var: str
    count: int | None
    nodes: list[Branch | Leaf] = field(default_factory=list)


@dataclass(eq=False)
class Leaf:
    name: str
    step: Step


def tree(program: Program) -> Branch:
    """The program's body with a name for every node; the root is called as the program."""
    root = Branch(program.name, "", None)
    root.nodes = _nodes(program.body, program.name)
    return root


def _nodes(body: tuple[Node, ...], within: str) -> list[Branch | Leaf]:
    seen: Tally[str] = Tally()
    last = "start"
    found: list[Branch | Leaf] = []
    for node in body:
        local = node.var if isinstance(node, Loop) else _kind(node, last)
        seen[local] += 1
        local = local if seen[local] == 1 else _again(local, seen[local])
        name = f"{within}/{local}"
        if isinstance(node, Loop):
            found.append(Branch(name, node.var, node.count, _nodes(node.body, name)))
        else:
            found.append(Leaf(name, node))
        last = last if isinstance(node, Step) and isinstance(node.op, BarrierOp) else local
    return found


def _again(local: str, number: int) -> str:
    """The name of an equal. `barrier@stage#2` is already that of the barrier behind `stage#2`."""
    kind, at, step = local.partition("@")
    return f"{kind}{number}@{step}" if at else f"{local}#{number}"


def _kind(step: Step, last: str) -> str:
    op = step.op
    if isinstance(op, BarrierOp):
        return f"barrier@{last}"
    parts: list[str] = [op.op]
    about = next((value for name in ABOUT if (value := getattr(op, name, None)) is not None), None)
    if about is not None:
        parts.append(str(about))
    elif op.op in ("wait", "signal"):
        parts += [*(w.counter for w in step.waits), *(s.counter for s in step.signals)][:1]
    layer = getattr(op, "layer", None)
    if isinstance(layer, int) and about != "lm_head":
        parts.append(str(layer))
    return ".".join(parts)


def body(branch: Branch) -> tuple[Node, ...]:
    """The nodes as a schedule has them."""
    return tuple(_node(node) for node in branch.nodes)


def _node(node: Branch | Leaf) -> Node:
    if isinstance(node, Leaf):
        return node.step
    return Loop.model_validate({"var": node.var, "count": node.count, "body": body(node)})


def walk(branch: Branch) -> Iterator[tuple[Branch, Branch | Leaf]]:
    """(the branch that it is in, node), in textual order, loops before what is in them."""
    for node in branch.nodes:
        yield branch, node
        if isinstance(node, Branch):
            yield from walk(node)


def renamed(node: Branch | Leaf, name: str) -> Branch | Leaf:
    """A copy called `name`; what is in it is called after it."""
    if isinstance(node, Leaf):
        return Leaf(name, node.step)
    nodes = [renamed(inner, f"{name}/{inner.name.rpartition('/')[2]}") for inner in node.nodes]
    return Branch(name, node.var, node.count, nodes)


def of_node(node: Node, name: str) -> Branch | Leaf:
    """A node of a schedule as a named one."""
    if isinstance(node, Step):
        return Leaf(name, node)
    return Branch(name, node.var, node.count, _nodes(node.body, name))
