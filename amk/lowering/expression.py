"""Affine expressions as C++."""

from __future__ import annotations

from amk.lowering import refusal
from amk.lowering.plan_constants import table_entry
from amk.schedule_ir.expr import AGENT, Expr

SYMBOLS = {"t": "c.epoch", "n": "c.n", "l": "c.l", "worker": "c.worker"}


def expression(expr: Expr) -> str:
    """An affine expression as C++; names other than the loop variables are worker tables. AMK601 for an agent's number,
    for which no code is generated."""
    if isinstance(expr, int):
        return str(expr)
    terms = []
    for symbol, factor in sorted(expr.items()):
        if factor == 0:
            continue
        if symbol == "1":
            terms.append(str(factor))
            continue
        if symbol == AGENT:
            raise refusal.unsupported(
                "AMK601", "no code is generated for a warp's number in what is waited for or signalled"
            )
        text = SYMBOLS.get(symbol) or table_entry(symbol)
        terms.append(text if factor == 1 else f"{factor} * {text}")
    return " + ".join(terms) or "0"
