"""Bring weights that the rings have no room for yet into the L2 cache."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Op


class PrefetchOp(Op):
    """Ask for the `chunks` chunks of the agent's stream that follow those already issued in this token.

    Weights are constants and a prefetch delivers nothing, so the step has no accesses: it changes when bytes arrive.
    """

    op: Literal["prefetch"] = "prefetch"
    stream: Name
    chunks: int = Field(ge=1, le=256)
