"""Issue copies that products on a stream held back."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Op
from amk.schedule_ir.ops.precondition import Need, bulk_copies, only_stream, owners_of_ring


class RefillOp(Op):
    """Each agent issues the copies that it owes the stream's ring (`gemv`), the oldest first, at most `most`.

    What is left goes out in later steps. A drain never waits for a copy that its own agent holds back as long as a slot
    of the ring is not owed when a `gemv` begins. No other agent touches the slots: for everybody else the copies are
    only slower.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need("stream", only_stream(), "the kernel has one stream"),
        Need("ring", owners_of_ring(), "the warps that refill a ring are those that own it"),
        Need("engine", bulk_copies(), "only bulk copies are held back"),
    )
    op: Literal["refill"] = "refill"
    stream: Name
    most: int = Field(default=64, ge=1, le=64)
