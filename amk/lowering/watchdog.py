"""The watchdog's log as the host sees it: how large it is, and what its records say.

The device side is `cuda/watchdog.cuh`; a test compares the two layouts field by field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amk.report.diagnostic import AmkError, Diagnostic, Exit, shown

HEADER = np.dtype([("count", "<u4"), ("capacity", "<u4"), ("reserved", "<u4", (2,))])
RECORD = np.dtype(
    [(name, "<u4") for name in ("worker", "agent", "kind", "object", "wanted", "seen", "cause", "reserved")]
)
KINDS = ("counter", "tagged word", "mbarrier")
CAUSES = ("", "stalled", "aborted by the host", "stopped because another agent was")


@dataclass(frozen=True)
class BlockedWait:
    """One abandoned wait; `object` is the number of the counter, word or barrier in the schedule."""

    worker: int
    agent: int
    kind: str
    object: int
    threshold: int
    value: int
    cause: str


def empty_log(capacity: int) -> NDArray[np.uint8]:
    """Bytes to upload before a launch: no records, room for `capacity`."""
    header = np.zeros(1, dtype=HEADER)
    header["capacity"] = capacity
    log = np.zeros(HEADER.itemsize + capacity * RECORD.itemsize, dtype=np.uint8)
    log[: HEADER.itemsize] = header.view(np.uint8)
    return log


def read_log(log: NDArray[np.uint8]) -> list[BlockedWait]:
    """The records in the order in which they were claimed: the first is the first wait that was given up."""
    count, capacity = (int(log[: HEADER.itemsize].view(HEADER)[0][name]) for name in ("count", "capacity"))
    records = log[HEADER.itemsize :].view(RECORD)[: min(count, capacity)]
    return [
        BlockedWait(
            worker=int(record["worker"]),
            agent=int(record["agent"]),
            kind=_name(KINDS, int(record["kind"])),
            object=int(record["object"]),
            threshold=int(record["wanted"]),
            value=int(record["seen"]),
            cause=_name(CAUSES, int(record["cause"])),
        )
        for record in records
    ]


def check_log(log: NDArray[np.uint8], describe: Callable[[BlockedWait], str] | None = None) -> None:
    """Raise AMK604 if any wait was abandoned; `describe` turns a record into words of the schedule."""
    blocked = read_log(log)
    if not blocked:
        return
    lines = tuple(shown((describe or plain_words)(wait)) for wait in blocked[:16])
    more = f", the first {len(lines)} of them:" if len(blocked) > len(lines) else ":"
    message = f"the kernel was stopped with {len(blocked)} blocked agents{more}"
    raise AmkError(Diagnostic("AMK604", message, facts=lines), Exit.INTERNAL)


def plain_words(wait: BlockedWait) -> str:
    """A record without knowledge of the schedule."""
    relation = {"counter": ">=", "tagged word": "tag", "mbarrier": "phase parity"}.get(wait.kind, "")
    return (
        f"worker {wait.worker}, agent {wait.agent} waits for {wait.kind} {wait.object} {relation} {wait.threshold}, "
        f"saw {wait.value} ({wait.cause})"
    )


def _name(names: tuple[str, ...], index: int) -> str:
    return names[index] if index < len(names) else f"unknown ({index})"
