"""Affine integer expressions over loop variables, worker tables, the worker and the agent index.

Waits, signals and layer indices are affine, so one loop body with integer offsets covers every iteration and the
validator never evaluates anything that schedule text could turn into code. The position is not a symbol: accesses may
depend on it, waits and signals never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

IntArray = NDArray[np.int64]
Value = int | IntArray

CONST = "1"
WORKER = "worker"
AGENT = "agent"
EPOCH = "t"
LIMIT = 2**32
"""Of a coefficient: counters have 32 bits."""


def _bounded(expr: int | dict[str, int]) -> int | dict[str, int]:
    items = {CONST: expr} if isinstance(expr, int) else expr
    if len(items) > 8:
        raise ValueError("an expression has at most 8 terms")
    if any(abs(v) > LIMIT for v in items.values()):
        raise ValueError(f"coefficients are bounded by 2^32, got {max(items.values(), key=abs)}")
    return expr


Expr = Annotated[int | dict[str, int], AfterValidator(_bounded)]
"""A constant, or {symbol: coefficient}; symbol "1" is the constant term, a table name means table[worker]."""


@dataclass(frozen=True)
class Env:
    """Where an event stands: loop variables, the workers and agents (scalars or equal-length arrays) that run it."""

    loops: Mapping[str, int]
    worker: Value
    agent: Value = 0
    pos: int = 0
    tables: Mapping[str, IntArray] = field(default_factory=dict)

    def symbol(self, name: str) -> Value:
        if name == CONST:
            return 1
        if name == WORKER:
            return self.worker
        if name == AGENT:
            return self.agent
        if name in self.loops:
            return self.loops[name]
        column = self.tables[name]
        picked: Any = column[self.worker]
        return picked if isinstance(self.worker, np.ndarray) else int(picked)

    def number(self, name: str) -> int:
        """What a single worker reads under the name. Ops compute footprints with it, and with `pos`, as they do with
        any integer, and turn into an `int` only what decides how many accesses there are: an environment may stand
        for several workers."""
        return int(self.symbol(name))

    def eval(self, expr: Expr) -> Value:
        if isinstance(expr, int):
            return expr
        total: Value = 0
        for name, factor in expr.items():
            total = total + factor * self.symbol(name)
        return total

    def eval_int(self, expr: Expr) -> int:
        """The value of an expression that names neither worker, agent nor table."""
        value = self.eval(expr)
        if isinstance(value, np.ndarray):
            raise TypeError(f"{expr} differs between workers")
        return int(value)


def symbols(expr: Expr) -> set[str]:
    """Names an expression mentions, the constant left out."""
    return set() if isinstance(expr, int) else set(expr) - {CONST}


def coefficient(expr: Expr, symbol: str) -> int:
    if isinstance(expr, int):
        return expr if symbol == CONST else 0
    return expr.get(symbol, 0)
