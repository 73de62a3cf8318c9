"""A step whose loop begins later: every index, threshold and layer counts on."""

from __future__ import annotations

from typing import Any

from amk.schedule_ir.expr import CONST, Expr
from amk.schedule_ir.schedule import Signal, Step, Wait

EXPRESSIONS = ("layer", "index")
"""Fields of ops that are expressions in the loop variables."""


def shifted(step: Step, var: str, by: int) -> Step:
    """What the step is at `var` + `by`, as an expression in `var`."""

    def at(expr: Expr) -> Expr:
        if isinstance(expr, int) or var not in expr:
            return expr
        return expr | {CONST: expr.get(CONST, 0) + by * expr[var]}

    op: dict[str, Any] = {
        name: at(value) for name in EXPRESSIONS if (value := getattr(step.op, name, None)) is not None
    }
    return step.model_copy(
        update={
            "op": step.op.model_copy(update=op),
            "waits": tuple(_wait(wait, at) for wait in step.waits),
            "signals": tuple(_signal(signal, at) for signal in step.signals),
        }
    )


def _wait(wait: Wait, at: Any) -> Wait:
    return wait.model_copy(update={"index": tuple(map(at, wait.index)), "at_least": at(wait.at_least)})


def _signal(signal: Signal, at: Any) -> Signal:
    return signal.model_copy(update={"index": tuple(map(at, signal.index)), "add": at(signal.add)})
