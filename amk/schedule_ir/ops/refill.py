"""Issue the copies that a stream held back at the end of a product."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Op
from amk.schedule_ir.ops.precondition import Need, only_stream, owners_of_ring


class RefillOp(Op):
    """Each agent issues the copies into the slots whose refill its last `gemv` on the stream deferred, at most `most`.

    It comes before the next `gemv` on the stream, so a drain never waits for a copy that its own agent holds back. No
    other agent touches the slots: for everybody else the copies are only slower.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need("stream", only_stream(), "the kernel has one stream"),
        Need("ring", owners_of_ring(), "the warps that refill a ring are those that own it"),
    )
    op: Literal["refill"] = "refill"
    stream: Name
    most: int = Field(default=64, ge=1, le=64)
