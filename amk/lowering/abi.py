"""The kernel's one argument: device pointers and launch parameters, generated from the schedule for both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from amk.lowering.plan_constants import identifier
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.memory import Counter
from amk.schedule_ir.schedule import Schedule

COUNTER_STRIDE = 32
"""u32 words between counters: each has its own 128-byte line, so pollers of one do not slow signals of another."""

C_TYPES = {
    "f32": "float", "bf16": "amk::bf16", "u32": "amk::u32", "i32": "int", "fp8": "amk::fp8", "digits": "amk::digits",
    "halves": "__half",
}  # fmt: skip
_TAIL = (
    ("counters", "amk::u32*", "<u8"),
    ("watchdog_log", "amk::sync::WatchdogLog*", "<u8"),
    ("abort_word", "const amk::u32*", "<u8"),
    ("stall_ns", "amk::u64", "<u8"),
    ("tokens", "amk::u64", "<u8"),
    ("trace", "amk::u32*", "<u8"),
)


@dataclass(frozen=True)
class Abi:
    """Field order of the argument block; every field is 8 bytes."""

    buffers: tuple[tuple[str, str], ...]
    counter_base: Mapping[str, int]
    counter_count: int

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        names = [name for name, _ in self.buffers] + [name for name, _, _ in _TAIL]
        return np.dtype([(name, "<u8") for name in names])

    @property
    def counter_bytes(self) -> int:
        return max(self.counter_count, 1) * COUNTER_STRIDE * 4

    def struct(self) -> str:
        fields = [f"  {c_type}* {name};" for name, c_type in self.buffers]
        fields += [f"  {c_type} {name};" for name, c_type, _ in _TAIL]
        size = 8 * len(fields)
        body = "\n".join(fields)
        return f'struct Globals {{\n{body}\n}};\nstatic_assert(sizeof(Globals) == {size}, "host layout");\n'

    def pack(self, values: Mapping[str, int]) -> NDArray[np.void]:
        """The argument block; KeyError if a field is missing."""
        block = np.zeros((), self.dtype)
        for name in self.dtype.names or ():
            block[name] = values[name]
        return block


def abi(schedule: Schedule) -> Abi:
    buffers = tuple(
        (member(b.name), "amk::u64" if b.tagged else C_TYPES[b.dtype]) for b in schedule.buffers if b.space == "global"
    )
    base, total = {}, 0
    for counter in schedule.counters:
        base[counter.name] = total
        total += counter.count
    return Abi(buffers, base, total)


def member(name: str) -> str:
    """What a buffer is called in the kernel's parameter."""
    return f"b_{identifier(name)}"


def counter_names(schedule: Schedule) -> list[str]:
    """Names of the counters by number, such as 'qkv[3,0]', for the watchdog's report."""
    names = []
    for counter in schedule.counters:
        for flat in range(counter.count):
            place = ",".join(str(i) for i in np.unravel_index(flat, counter.shape))
            names.append(f"{counter.name}[{place}]")
    return names


def flat_index(counter: Counter, index: tuple[Expr, ...]) -> dict[str, int]:
    """The row-major number of counter[index] within its family, as one affine expression."""
    total: dict[str, int] = {}
    stride = 1
    for size, expr in zip(reversed(counter.shape), reversed(index), strict=True):
        for symbol, factor in ({"1": expr} if isinstance(expr, int) else expr).items():
            total[symbol] = total.get(symbol, 0) + factor * stride
        stride *= size
    return total
