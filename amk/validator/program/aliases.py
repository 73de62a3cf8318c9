"""Shared buffers with bytes in common, used in one step.

Property: an op orders what it does to one buffer (its reads before its writes of the same elements); among different
buffers it reads and writes as it likes, some of its values per worker and iterations ahead of others. So where a
warp uses a byte by way of two buffers in one step and one use is a write, what is there is not determined, whatever
waits there are. Between steps and between warps the usual orders decide.

Codes: AMK301 if both are writes, AMK302 otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

from amk.report.diagnostic import Diagnostic, Where, because
from amk.report.schema import json_pointer
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.ops import Access

Clash = tuple[Access, Access]
Meeting = tuple[str, str, int]
"""Two buffers, and bytes from the start of one to the start of the other."""


def aliased(buffers: Mapping[str, Buffer]) -> list[Meeting]:
    """Shared buffers that meet; in plans no op has any."""
    spans = {name: (b.offset or 0, (b.offset or 0) + b.bytes) for name, b in buffers.items() if b.space == "shared"}
    return [
        (one, two, spans[two][0] - spans[one][0])
        for one, two in combinations(spans, 2)
        if spans[one][0] < spans[two][1] and spans[two][0] < spans[one][1]
    ]


def clash_of(accesses: list[Access], pairs: list[Meeting]) -> Clash | None:
    """Two accesses of a byte by way of two buffers, one of them a write."""
    for one, two, gap in pairs:
        by = [[a for a in accesses if a.buffer == name] for name in (one, two)]
        for a, b in product(*by):
            if "write" in (a.kind, b.kind) and a.lo < b.hi + gap and b.lo + gap < a.hi:
                return a, b
    return None


def check_clashes(clashes: Mapping[tuple[str | int, ...], Clash]) -> Iterator[Diagnostic]:
    """One finding per op of the schedule, by its path."""
    for path, (a, b) in clashes.items():
        code = "AMK301" if a.kind == b.kind else "AMK302"
        message = f"a warp {a.kind}s '{a.buffer}' and {b.kind}s '{b.buffer}' in one step, and they have bytes in common"
        facts = (because("an op orders its accesses of one buffer, not those of two"),)
        yield Diagnostic(code, message, where=Where(path=json_pointer(path)), facts=facts)
