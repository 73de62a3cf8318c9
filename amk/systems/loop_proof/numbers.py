"""Numbers of a file, at any lap.

Property: with `period, rate = number.shape`, `number.at(k + period) == number.at(k) + rate * period` for every k >= 0.
By structure: `/` and `%` by c repeat, but for what they grow by, once the growth of their operand is a multiple of c.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any, Final

MOST_LAPS: Final = 64
"""A number repeats after so many laps at the latest."""


class Refused(Exception):
    """The certificate proves nothing; the message says what is open."""


def need(holds: bool, reason: str) -> None:
    if not holds:
        raise Refused(reason)


@dataclass(frozen=True)
class Number:
    """node: an expression, or a table by a name; values: values of names; lap: the name that stands for the lap."""

    node: Any
    values: Mapping[str, int]
    lap: str | None

    def at(self, k: int) -> int:
        return _value(self.node, {**self.values, **({} if self.lap is None else {self.lap: k})})

    @property
    def shape(self) -> tuple[int, Fraction]:
        return _shape(self.node, self)

    def uses(self, name: str) -> bool:
        return name in names(self.node)


def number(expression: Any, values: Mapping[str, int], lap: str | None) -> Number:
    if isinstance(expression, str):
        try:
            expression = ast.parse(expression.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Refused("a number cannot be read") from error
    elif isinstance(expression, dict):
        table = expression.get("table")
        good = isinstance(table, list | tuple) and table and all(type(n) is int for n in table)
        need(
            bool(good) and isinstance(expression.get("index"), str) and type(expression.get("step")) is int,
            "a number is malformed",
        )
    else:
        need(type(expression) is int, "a number is malformed")
    return Number(expression, values, lap)


def names(node: Any) -> set[str]:
    if isinstance(node, int):
        return set()
    if isinstance(node, dict):
        return {node["index"]}
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _value(node: Any, names: Mapping[str, int]) -> int:
    match node:
        case int():
            return node
        case {"index": index, "step": step, "table": table}:
            need(index in names, "a name is unknown")
            return int(step * (names[index] // len(table)) + table[names[index] % len(table)])
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.Name(id=name):
            need(name in names, "a name is unknown")
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(_value(left, names), op, _value(right, names))
    raise Refused("a number is made of something else than + - * // %")


def _combined(left: int, op: ast.operator, right: int) -> int:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv() | ast.Mod():
            need(right > 0, "a divisor is not positive")
            need(left >= 0, "what is divided may be negative, which languages round in two ways")
            return left // right if isinstance(op, ast.FloorDiv) else left % right
    raise Refused("a number is made of something else than + - * // %")


def _shape(node: Any, whole: Number) -> tuple[int, Fraction]:
    lap = whole.lap
    if lap is None or lap not in names(node):
        return 1, Fraction(0)
    match node:
        case {"step": step, "table": table}:
            return _whole(len(table)), Fraction(step, len(table))
        case ast.Name():
            return 1, Fraction(1)
        case ast.UnaryOp(operand=operand):
            period, rate = _shape(operand, whole)
            return period, -rate
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            (one, a), (two, b) = _shape(left, whole), _shape(right, whole)
            return _whole(lcm(one, two)), a + b if isinstance(op, ast.Add) else a - b
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            if lap in names(left):
                left, right = right, left
            need(lap not in names(left), "a product of laps")
            period, rate = _shape(right, whole)
            return period, rate * _value(left, whole.values)
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod() as op, right=right):
            need(lap not in names(right), "a divisor depends on the lap")
            period, rate = _shape(left, whole)
            divisor = _value(right, whole.values)
            need(divisor > 0, "a divisor is not positive")
            need(rate >= 0, "what is divided may be negative, which languages round in two ways")
            repeats = next((p for p in range(period, MOST_LAPS + 1, period) if rate * p % divisor == 0), MOST_LAPS + 1)
            return _whole(repeats), rate / divisor if isinstance(op, ast.FloorDiv) else Fraction(0)
    raise Refused("a number is made of something else than + - * // %")


def _whole(period: int) -> int:
    need(period <= MOST_LAPS, "a number repeats after too many laps")
    return period
