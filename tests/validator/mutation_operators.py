"""Mutation operators: rules that edit one place of a function, found in its syntax tree.

A rule knows no text of the program. It lists the places of a function at which it applies, in the order of the source.
The edited source differs from the source in that place alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

Change = tuple[ast.expr | ast.stmt, str]
"""A node, and the text in its place."""
Operator = Callable[["Scope", ast.AST], Iterator[Change]]

SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
ONE_OFF = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OPPOSITE = {"<": ">=", "<=": ">", "==": "!=", "is": "is not", "in": "not in"}
OPPOSITE |= {new: old for old, new in OPPOSITE.items()}
EXTREMES = {"min": "max", "minimum": "maximum", "all": "any"}
EXTREMES |= {new: old for old, new in EXTREMES.items()}
BITS = ast.BitAnd | ast.BitOr
ATOMS = ast.Name | ast.Constant | ast.Attribute | ast.Call | ast.Subscript | ast.Tuple | ast.List | ast.Set
PARTS = ATOMS | ast.Starred | ast.keyword
"""What needs no parentheses where it stands, or may have none."""


@dataclass(frozen=True)
class Scope:
    """A function, a class or a statement of a file. starts: the byte at which each line begins."""

    text: bytes
    starts: tuple[int, ...]
    tree: ast.AST

    @classmethod
    def named(cls, source: str, name: str) -> Scope:
        """`Class.method`, `function`, or what a statement of the file assigns to; ValueError if there is not one."""
        text = source.encode()
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        tree: ast.AST = ast.parse(source)
        for part in name.split("."):
            found = [node for node in ast.iter_child_nodes(tree) if _defines(node, part)]
            if len(found) != 1:
                raise ValueError(f"{len(found)} definitions of {name}, expected 1")
            tree = found[0]
        return cls(text, tuple(starts), tree)

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """In bytes."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.keyword) -> str:
        """Its text, so that it may stand anywhere in an expression."""
        start, end = self.span(node)
        text = self.text[start:end].decode()
        return text if isinstance(node, PARTS) else f"({text})"


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name == name
    return isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)


def _compared(scope: Scope, node: ast.AST, other: dict[str, str]) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        symbols, sides = [SYMBOLS[type(op)] for op in node.ops], [scope.of(side) for side in node.comparators]
        for k, symbol in enumerate(symbols):
            if symbol in other:
                changed = [*symbols[:k], other[symbol], *symbols[k + 1 :]]
                pairs = zip(changed, sides, strict=True)
                yield node, " ".join((scope.of(node.left), *(word for pair in pairs for word in pair)))


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """What is true or false of this node."""
    if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _called(node) in ("bool", "all", "any")):
        yield node
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        yield node.test
    elif isinstance(node, ast.comprehension):
        yield from node.ifs
    elif isinstance(node, ast.BoolOp):
        yield from (node, *node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from (node, node.operand)


def _called(node: ast.AST) -> str:
    """The name of what a call calls."""
    called = node.func if isinstance(node, ast.Call) else None
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _numbers(node: ast.AST) -> Iterator[ast.expr]:
    """What may be a number: what is compared, given, returned, kept or selected with."""
    found: list[ast.expr | None] = []
    if isinstance(node, ast.Compare):
        found = [node.left, *node.comparators]
    elif isinstance(node, ast.Call):
        found = [*node.args]
    elif isinstance(node, ast.Tuple):
        found = [*node.elts]
    elif isinstance(node, ast.Assign | ast.Return | ast.AugAssign):
        found = [node.value]
    elif isinstance(node, ast.Subscript):
        found = [node.slice]
    elif isinstance(node, ast.BinOp):
        found = [node.left, node.right]
    yield from (n for n in found if n is not None and not isinstance(n, ast.Starred | ast.Slice | ast.Tuple))


def _moved(scope: Scope, node: ast.AST, by: int) -> Iterator[Change]:
    for number in _numbers(node):
        if isinstance(number, ast.Constant):
            if type(number.value) is int:
                yield number, str(number.value + by)
        else:
            new = f"{scope.of(number)} {'+' if by > 0 else '-'} {abs(by)}"
            yield number, f"({new})" if isinstance(node, ast.BinOp) else new


def _comparison_one_off(scope: Scope, node: ast.AST) -> Iterator[Change]:
    return _compared(scope, node, ONE_OFF)


def _comparison_opposite(scope: Scope, node: ast.AST) -> Iterator[Change]:
    return _compared(scope, node, OPPOSITE)


def _condition_never(_: Scope, node: ast.AST) -> Iterator[Change]:
    return ((condition, "False") for condition in _conditions(node))


def _condition_always(_: Scope, node: ast.AST) -> Iterator[Change]:
    return ((condition, "True") for condition in _conditions(node))


def _operand_left_out(scope: Scope, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp):
        yield from ((node, scope.of(side)) for side in (node.right, node.left))
    elif isinstance(node, ast.BoolOp):
        word = " and " if isinstance(node.op, ast.And) else " or "
        values = [scope.of(value) for value in node.values]
        yield from ((node, word.join(values[:k] + values[k + 1 :])) for k in range(len(values)))


def _operand_negated(scope: Scope, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, BITS):
        yield from ((side, f"~{scope.of(side)}") for side in (node.left, node.right))
    elif isinstance(node, ast.BoolOp):
        yield from ((value, f"(not {scope.of(value)})") for value in node.values)


def _and_for_or(scope: Scope, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp):
        yield node, (" or " if isinstance(node.op, ast.And) else " and ").join(map(scope.of, node.values))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, BITS):
        yield node, f"{scope.of(node.left)} {'|' if isinstance(node.op, ast.BitAnd) else '&'} {scope.of(node.right)}"


def _other_extreme(scope: Scope, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Name) and node.id in EXTREMES:
        yield node, EXTREMES[node.id]
    elif isinstance(node, ast.Attribute) and node.attr in EXTREMES:
        yield node, f"{scope.of(node.value)}.{EXTREMES[node.attr]}"


def _one_more(scope: Scope, node: ast.AST) -> Iterator[Change]:
    return _moved(scope, node, 1)


def _one_less(scope: Scope, node: ast.AST) -> Iterator[Change]:
    return _moved(scope, node, -1)


def _zero(scope: Scope, node: ast.AST) -> Iterator[Change]:
    yield from ((number, "0") for number in _numbers(node))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
        yield node.value, f"(0 * {scope.of(node.value)})"  # what is asked for an attribute stays an array


def _one(_: Scope, node: ast.AST) -> Iterator[Change]:
    return ((number, "1") for number in _numbers(node))


def _argument_for_call(scope: Scope, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        yield from ((node, scope.of(a)) for a in node.args if not isinstance(a, ast.Starred))


def _all_for_selection(scope: Scope, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Subscript):
        yield node, scope.of(node.value)


def _statement_left_out(_: Scope, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign):
        yield node, "pass"


def _one_branch(scope: Scope, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.IfExp):
        yield from ((node, scope.of(way)) for way in (node.body, node.orelse))


def _element_left_out(scope: Scope, node: ast.AST) -> Iterator[Change]:
    """Of a tuple or a list, or an argument of a call."""
    if isinstance(node, ast.Tuple | ast.List):
        parts, brackets = [scope.of(part) for part in node.elts], "()" if isinstance(node, ast.Tuple) else "[]"
    elif isinstance(node, ast.Call):
        parts, brackets = [*map(scope.of, node.args), *map(scope.of, node.keywords)], f"{scope.of(node.func)}()"
    else:
        return
    for k in range(len(parts)):
        rest = ", ".join(parts[:k] + parts[k + 1 :])
        comma = "," if isinstance(node, ast.Tuple) and len(parts) == 2 else ""
        yield node, f"{brackets[:-1]}{rest}{comma}{brackets[-1]}"


def _neighbour(scope: Scope, node: ast.AST) -> Iterator[Change]:
    """An element or an argument stands in the place of the next or of the one before."""
    parts = node.elts if isinstance(node, ast.Tuple) else node.args if isinstance(node, ast.Call) else []
    for left, right in pairwise(parts):
        yield left, scope.of(right)
        yield right, scope.of(left)


def _nothing(scope: Scope, node: ast.AST) -> Iterator[Change]:
    """No element of a sequence or a set."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[-1], ast.In | ast.NotIn):
        yield node.comparators[-1], "()"
    elif isinstance(node, ast.For | ast.comprehension):
        yield from _none_of(scope, node.iter)
    elif isinstance(node, ast.Call):
        if _called(node) in ("frozenset", "set", "tuple"):
            yield node, f"{_called(node)}()"
        for argument in node.args:
            yield from _none_of(scope, argument)
    elif isinstance(node, ast.Assign):
        yield from _none_of(scope, node.value)


def _none_of(scope: Scope, sequence: ast.expr) -> Iterator[Change]:
    """A selection by bounds or by a comparison is replaced, another one is followed by that of nothing."""
    if isinstance(sequence, ast.Subscript) and isinstance(sequence.slice, ast.Slice | ast.Compare):
        yield sequence, f"{scope.of(sequence.value)}[:0]"
    elif not isinstance(sequence, ast.Starred):
        yield sequence, f"{scope.of(sequence)}[:0]"


RULES: dict[str, Operator] = {
    "comparison one off": _comparison_one_off,
    "comparison opposite": _comparison_opposite,
    "condition never true": _condition_never,
    "condition always true": _condition_always,
    "operand left out": _operand_left_out,
    "operand negated": _operand_negated,
    "and for or": _and_for_or,
    "other extreme": _other_extreme,
    "one more": _one_more,
    "one less": _one_less,
    "zero": _zero,
    "one": _one,
    "argument for call": _argument_for_call,
    "all for selection": _all_for_selection,
    "statement left out": _statement_left_out,
    "one branch": _one_branch,
    "element left out": _element_left_out,
    "neighbour": _neighbour,
    "nothing": _nothing,
}


@dataclass(frozen=True)
class Place:
    """Bytes `start` to `end` become `new`. words: every name in what stands there, or around a mere number."""

    start: int
    end: int
    new: str
    words: frozenset[str]

    def edited(self, text: bytes) -> str:
        return (text[: self.start] + self.new.encode() + text[self.end :]).decode()

    def description(self, text: bytes) -> str:
        line = text.count(b"\n", 0, self.start) + 1
        return f"line {line}: {text[self.start : self.end].decode()} > {self.new}"


def places(scope: Scope, rule: str, of: str = "") -> list[Place]:
    """All at which the rule applies, in the order of the source; only those that mention `of`."""
    values = (node for node in ast.walk(scope.tree) if not isinstance(getattr(node, "ctx", None), ast.Store))
    found = {
        Place(*scope.span(at), new, _words(at) or _words(node))
        for node in values
        for at, new in RULES[rule](scope, node)
    }
    ordered = sorted(found, key=lambda place: (place.start, place.end, place.new))
    return [place for place in ordered if not of or of in place.words]


def _words(tree: ast.AST) -> frozenset[str]:
    nodes = list(ast.walk(tree))
    names = {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    return frozenset(names | {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)})
