"""Synchronisation that other kernels use and the exact analysis does not cover, as data that can be named.

A schedule may say what it does even where amk cannot decide about it: the verdict is then UNKNOWN with the code of the
first such operation. Fields that hold their default are left out of the text, so schedules without any are unchanged.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from amk.report.name import Name

Compare = Literal[">=", "==", "!=", "<"]
"""How a wait looks at its counter; only >= stays true once it is."""
Action = Literal["add", "reset", "exchange"]
"""What a signal does: add; store `add` whatever the value was; take or free a lock by compare-and-swap."""
Touch = Literal["strong", "weak", "wide"]
"""The operation on a counter: a 32-bit atomic or strong load, a plain or volatile access, one of 64 bits. Only the
first is a hand-off (rule M6); the others are a data race."""
Stores = Literal["plain", "bulk", "mixed"]
"""How an op's results reach global memory: plain stores; bulk stores of which only the reads are waited for before the
step signals (breaks rule M8); reductions of several sizes or scopes, or beside plain stores (breaks rule M10)."""
Meeting = Literal["sync", "arrive"]
"""At a barrier a warp arrives and waits for the others, or goes on at once and has acquired nothing (breaks M11)."""
Descriptor = Literal["none", "modified"]
"""modified: copies by a tensor map that the kernel changes, without the fence for tensor maps (breaks M12)."""
Wrapping = Literal["lag", "unsigned"]
"""How a 32-bit counter that has wrapped is compared: by the sign of the difference, or as it stands."""


class Pool(BaseModel):
    """A resource that agents take and give back, and block for while too little is left."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Name
    kind: Literal["registers", "tensor_memory"]
    units: int = Field(ge=1, le=2**20)
