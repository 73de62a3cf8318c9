"""The kernel's constant arrays: printed from the schedule, and read back from the PTX.

Property: every array in constant memory is one of `arrays`, or the stamp, and has its numbers. Steps, waits and signals
    read their worker's entry, so thresholds and amounts rest on the numbers as much as on the code. The compiler may
    leave out an array that nothing reads.
Cost: linear in the declarations of the text.
"""

from __future__ import annotations

import re

from amk.lowering import refusal
from amk.lowering.plan_constants import constant_array, identifier
from amk.lowering.stamp import SYMBOL
from amk.report.diagnostic import shown
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.schedule import Schedule

_DECLARED = re.compile(r"^[ \t]*(?:\.visible )?\.const\b([^;]*);", re.MULTILINE)
_ARRAY = re.compile(r" \.align 4 \.b8 ([\w$]+)\[(\d+)\](?: = \{([0-9, ]*)\})?")
_BYTES = 4


def arrays(schedule: Schedule) -> dict[str, tuple[int, ...]]:
    """The schedule's tables, an entry a worker; chunks per token and first chunk of every (worker, agent)."""
    layout = stream_layout(schedule, schedule.streams[0])
    tables = {f"t_{identifier(name)}": values for name, values in sorted(schedule.tables.items())}
    streams = {"stream_base": layout.base, "stream_total": layout.totals}
    return tables | {name: tuple(map(int, values.reshape(-1))) for name, values in streams.items()}


def array_text(schedule: Schedule) -> str:
    return "".join(constant_array(name, values) for name, values in arrays(schedule).items())


def check_arrays(schedule: Schedule, ptx: str) -> None:
    """Raise AMK609 for the first array in constant memory that is not the schedule's."""
    expected = {f"{len(name)}{name}E": values for name, values in arrays(schedule).items()}
    for declared in _DECLARED.finditer(ptx):
        array = _ARRAY.fullmatch(declared[1])
        if array is None and f" {SYMBOL}[" in declared[1]:
            continue  # admission compares it
        values = None if array is None else next((v for n, v in expected.items() if array[1].endswith(n)), None)
        if array is None or values is None or _content(array) != list(values):
            line = ptx.count("\n", 0, declared.start()) + 1
            words = shown(f"line {line}: {' '.join(declared[0].split())[:200]}")
            raise refusal.unsafe("AMK609", "constant memory holds other numbers than the schedule's tables", words)


def _content(array: re.Match[str]) -> list[int]:
    """The 32-bit numbers of an array; bytes at the end that are not named are zero."""
    named = bytes(int(byte) for byte in (array[3] or "").split(",") if byte.strip())
    whole = named.ljust(int(array[2]), b"\0")
    return [int.from_bytes(whole[at : at + _BYTES], "little", signed=True) for at in range(0, len(whole), _BYTES)]
