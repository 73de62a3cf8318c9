"""Steps that only wait, signal or meet: no data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from amk.report.schema import unless
from amk.schedule_ir.ops.base import Op

Meeting = Literal["sync", "arrive"]
"""At a barrier a warp arrives and waits for the others, or goes on at once and has acquired nothing (breaks M11)."""


class WaitOp(Op):
    """Block the agents of `role` until the step's waits hold."""

    op: Literal["wait"] = "wait"


class SignalOp(Op):
    """Publish everything that happened before: one lane of the agent performs the step's signals."""

    op: Literal["signal"] = "signal"


class BarrierOp(Op):
    """Named CTA barrier `id`: every agent of `role` arrives, and leaves once all of this round have arrived.

    Round k of agent a ends when `agents` * (k + 1) arrivals were made on the barrier, so it is an increment-only
    counter local to the worker. `agents` must be the size of `role`; anything else deadlocks or lets an agent through.
    kind other than sync breaks rule M11.
    """

    op: Literal["barrier"] = "barrier"
    id: int = Field(ge=0, le=15)
    agents: int = Field(ge=1, le=32)
    kind: Meeting = unless("sync")
