"""Global memory: its allocations, and where each of them lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from amk.emulator.memory import state
from amk.emulator.memory.state import PAGE
from amk.emulator.ptx.encode import GLOBAL_BASE

Kind = Literal["constant", "scratch", "state"]
KINDS: dict[Kind, int] = {"constant": state.CONSTANT, "scratch": state.SCRATCH, "state": state.STATE}


@dataclass(frozen=True)
class Allocation:
    """A buffer of global memory. content: what the host wrote, None where it wrote nothing. shape and type are free."""

    name: str
    bytes: int
    kind: Kind
    content: NDArray[np.generic] | None = None


@dataclass
class Memory:
    """Global memory: where each allocation lies. Addresses are 256-byte aligned, with gaps that belong to nobody."""

    addresses: dict[str, int] = field(default_factory=dict)
    allocations: list[Allocation] = field(default_factory=list)
    end: int = PAGE

    def add(self, allocation: Allocation) -> int:
        """Place one more; its address."""
        place = self.end
        self.addresses[allocation.name] = GLOBAL_BASE + place
        self.allocations.append(allocation)
        self.end = place + -(-max(allocation.bytes, 1) // PAGE) * PAGE + PAGE
        return GLOBAL_BASE + place
