"""The width of what a schedule counts with: numbers that the device would cut off are refused, not wrapped.

The kernel has expressions as C++ (`lowering/expression.py`): table entries, `worker` and `l` are `int`, `t` is the
`unsigned` epoch, a number from 2^31 on is a 64-bit literal. Counters, thresholds and amounts are 32-bit words, and
addresses have 64 bits. A value that does not fit is another one on the device than in the schedule that was checked.

Property:
    (W1) indices, thresholds and amounts are evaluated without overflow: the magnitudes of all terms but those of `t`
         add up to less than 2^31, a constant from 2^31 on left out; indices as numbers within their counter
    (W2) a threshold grows by less than 2^31 a token; with W1, and counters that are no further from it (`wrap_around`),
         the comparison of two words says what that of two integers does
    (W3) the positions of all splits, active or not, have numbers of 31 bits
Tags are the business of `words`, elements of buffers and chunks of a launch that of `launch_needs`.

Codes: AMK204 for what is compared or added, AMK103 for what is addressed. Cost: one look at every step as written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.expr import AGENT, CONST, EPOCH, WORKER, Expr, coefficient
from amk.schedule_ir.schedule import Schedule, Wait
from amk.validator.program.trace import Path, all_sites

HALF: Final = 2**31


def check_widths(schedule: Schedule) -> list[Diagnostic]:
    """All findings."""
    return [*_expressions(schedule), *_positions(schedule)]


def _expressions(schedule: Schedule) -> Iterator[Diagnostic]:
    """W1, W2."""
    shapes = {c.name: c.shape for c in schedule.counters}
    most = {name: max(map(abs, column), default=0) for name, column in schedule.tables.items()}
    most |= {WORKER: schedule.launch.workers - 1, CONST: 1, EPOCH: 0}
    sizes = {r.name: r.count for r in schedule.roles}
    for site in all_sites(schedule):
        known = most | {AGENT: sizes[site.step.op.role] - 1, "l": (site.layers or 1) - 1}
        entries: list[tuple[Path, str, Expr, str]] = []
        for path, use in site.uses:
            field, value = ("at_least", use.at_least) if isinstance(use, Wait) else ("add", use.add)
            entries.append(((*path, field), field, value, use.counter))
            entries.append(((*path, "index"), "index", _flat(shapes[use.counter], use.index), use.counter))
        for path, field, expr, counter in entries:
            if (reach := _magnitude(expr, known)) >= HALF:
                message = f"{field} of '{counter}' is computed from terms of up to {reach:,}"
                yield finding("AMK204", message, path, "the device computes it in 32 bits")
            elif coefficient(expr, EPOCH) >= HALF:
                message = f"a threshold of '{counter}' grows by {coefficient(expr, EPOCH):,} per token"
                yield finding("AMK204", message, path, "the device compares words of 32 bits")


def _flat(shape: tuple[int, ...], index: tuple[Expr, ...]) -> Expr:
    """The number of a counter within its family, term by term as `lowering/abi.py` adds them up."""
    total: dict[str, int] = {}
    stride = 1
    for size, expr in zip(reversed(shape), reversed(index), strict=True):
        for name, factor in ({CONST: expr} if isinstance(expr, int) else expr).items():
            total[name] = total.get(name, 0) + abs(factor) * stride
        stride *= size
    return total


def _magnitude(expr: Expr, most: dict[str, int]) -> int:
    """The sum of the terms' magnitudes, without a constant that makes it a computation in 64 bits."""
    if isinstance(expr, int):
        return 0
    terms = {name: abs(factor) * most[name] for name, factor in expr.items()}
    return sum(terms.values()) - (terms.get(CONST, 0) if terms.get(CONST, 0) >= HALF else 0)


def _positions(schedule: Schedule) -> Iterator[Diagnostic]:
    """W3."""
    kv = schedule.kv
    if kv.block * kv.splits >= HALF:
        message = f"{kv.splits:,} splits of blocks of {kv.block:,} positions"
        yield finding("AMK103", message, ("kv",), "ops number positions in 32 bits")
