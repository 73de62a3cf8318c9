"""Deadlocks and races of any kernel that synchronises by counters: see README.md.

`System` says what the kernel does, `amk.verify` decides it. What a name needs is imported when it is first used, so
that the pytest plugin costs nothing where nobody uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amk.systems.builder import Agent, System
    from amk.systems.constructs import Barrier, Flag, Kernel
    from amk.systems.loops import LoopSystem
    from amk.systems.names import Buffer, Counter
    from amk.systems.verdict import Verdict

__all__ = ["Agent", "Barrier", "Buffer", "Counter", "Flag", "Kernel", "LoopSystem", "System", "Verdict"]

_HOME = {
    "Agent": "amk.systems.builder",
    "System": "amk.systems.builder",
    "Barrier": "amk.systems.constructs",
    "Flag": "amk.systems.constructs",
    "Kernel": "amk.systems.constructs",
    "Buffer": "amk.systems.names",
    "Counter": "amk.systems.names",
    "LoopSystem": "amk.systems.loops",
    "Verdict": "amk.systems.verdict",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'amk.systems' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
