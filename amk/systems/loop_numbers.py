"""Numbers of a file with loops: integers, texts such as `k % 3 * 1024`, and tables.

Property: `evaluated(written(index, name), {name: Index()})` has the value of `index` at every lap. What is written is
one text for one function of the lap: it does not depend on how the number was put together.

Errors: `Unknown` for a name that nothing gives a value, `TypeError` or `ValueError` for a number that is no such
function of one loop's lap (`affine`), `SyntaxError` for text that is no expression.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from amk.systems.affine import Index

MAX_TEXT: Final = 200
"""Characters of an expression."""
Number = int | Index


class Unknown(NameError):
    """A name that is neither a loop's nor a parameter's."""


def evaluated(
    number: int | str | Mapping[str, Any], names: Mapping[str, Number], laps: tuple[int, int | None] = (0, None)
) -> Number:
    """An integer where nothing in it depends on a lap. laps: the first one, and one past the last, if there is one."""
    if isinstance(number, int):
        return number
    if isinstance(number, Mapping):
        return _tabled(_look_up(number["index"], names), number["step"], number["table"])
    return _value(_parsed(number), names, laps)


def names_in(number: int | str | Mapping[str, Any]) -> set[str]:
    """The parameters and loops that a number depends on."""
    if isinstance(number, int):
        return set()
    if isinstance(number, Mapping):
        return {number["index"]}
    return {node.id for node in ast.walk(_parsed(number)) if isinstance(node, ast.Name)}


def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_TEXT:
        raise SyntaxError(f"an expression of {len(text)} characters; at most {MAX_TEXT}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error)) from error


def _look_up(name: str, names: Mapping[str, Number]) -> Number:
    if name not in names:
        raise Unknown(f"{name!r} is neither a parameter nor the number of a loop around it")
    return names[name]


def _value(node: ast.expr, names: Mapping[str, Number], laps: tuple[int, int | None]) -> Number:
    match node:
        case ast.Constant(value=int() as number) if type(number) is int:
            return number
        case ast.Name(id=name):
            return _look_up(name, names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names, laps)
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(_value(left, names, laps), op, _value(right, names, laps), laps)
    raise SyntaxError(f"{ast.unparse(node)[:40]!r} is none of integers, names, + - * // % and parentheses")


def _combined(left: Number, op: ast.operator, right: Number, laps: tuple[int, int | None]) -> Number:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv() | ast.Mod():
            if isinstance(right, Index):
                raise TypeError("a remainder or quotient by a number that depends on the lap")
            if right < 1:
                raise SyntaxError("the divisor of a remainder or quotient is a positive integer")
            if _negative(left, *laps):
                raise SyntaxError("what is divided may be negative, which C and Python round differently")
            return left // right if isinstance(op, ast.FloorDiv) else left % right
    raise SyntaxError("numbers are combined by + - * // and % alone")


def _negative(left: Number, first: int, end: int | None) -> bool:
    """Whether it is, at a lap from `first` to before `end`."""
    if isinstance(left, int):
        return left < 0
    if left.slope >= 0:
        looked = range(first, first + left.period if end is None else min(end, first + left.period))
    elif end is None:
        return True
    else:
        looked = range(max(first, end - left.period), end)
    return any(left.at(lap) < 0 for lap in looked)


def _tabled(lap: Number, step: int, table: list[int]) -> Number:
    """step * (lap // P) + table[lap % P]."""
    if isinstance(lap, int):
        return step * (lap // len(table)) + table[lap % len(table)]
    return Index.stepped(step, table)


def written(number: Number, name: str) -> int | str | dict[str, Any]:
    """`name` is what the lap is called."""
    if isinstance(number, int):
        return number
    size = number.period
    table = [number.at(lap) for lap in range(size)]
    step, rise = number.step(size), table[1] - table[0] if size > 1 else 0
    if any(entry != table[0] + rise * lap for lap, entry in enumerate(table)):
        return {"index": name, "step": step, "table": table}
    if size == 1:
        return _sum([(name, step)], table[0])
    return _sum([(f"{name} // {size}", step), (f"{name} % {size}", rise)], table[0])


def _sum(terms: list[tuple[str, int]], constant: int) -> int | str:
    shown = [text if by == 1 else f"{text} * {by}" for text, by in terms if by]
    if not shown:
        return constant
    if constant:
        shown.append(str(constant))
    return " + ".join(shown)
