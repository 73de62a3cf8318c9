"""Deadlocks and races of any kernel that synchronises by counters: see README.md.

`System` says what the kernel does, `amk.verify` decides it. What a name needs is imported when it is first used, so
that the pytest plugin costs nothing where nobody uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amk.systems.agent import Agent, Kernel
    from amk.systems.builder import System
    from amk.systems.loops import LoopSystem
    from amk.systems.names import Barrier, Buffer, Counter, Flag
    from amk.systems.verdict import Verdict

__all__ = ["Agent", "Barrier", "Buffer", "Counter", "Flag", "Kernel", "LoopSystem", "System", "Verdict"]

_HOME = {
    "Agent": "amk.systems.agent",
    "System": "amk.systems.builder",
    "Barrier": "amk.systems.names",
    "Flag": "amk.systems.names",
    "Kernel": "amk.systems.agent",
    "Buffer": "amk.systems.names",
    "Counter": "amk.systems.names",
    "LoopSystem": "amk.systems.loops",
    "Verdict": "amk.systems.verdict",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'amk.systems' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
