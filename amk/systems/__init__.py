"""Deadlocks and races of any kernel that synchronises by counters: see README.md.

`System` says what the kernel does, `amk.verify` decides it. What a name needs is imported when it is first used, so
that the pytest plugin costs nothing where nobody uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amk.systems.builder import Agent, Buffer, Counter, System
    from amk.systems.loops import LoopSystem
    from amk.systems.verdict import Verdict

__all__ = ["Agent", "Buffer", "Counter", "LoopSystem", "System", "Verdict"]

_HOME = dict.fromkeys(("Agent", "Buffer", "Counter", "System"), "amk.systems.builder") | {
    "LoopSystem": "amk.systems.loops",
    "Verdict": "amk.systems.verdict",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'amk.systems' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
