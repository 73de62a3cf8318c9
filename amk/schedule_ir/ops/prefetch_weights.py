"""Bring weights into the L2 cache that the rings have no room for yet."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from amk.schedule_ir.expr import Expr
from amk.schedule_ir.matrices import MatrixName
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Op


class PrefetchWeightsOp(Op):
    """Ask for `count` chunks of every agent of `stream`: the skip-th behind its share of `matrix` of `layer`, then
    every stride-th in the order in which it drains them. Chunks behind the token's last are left out.

    The first request goes out delay_ns after the step began, the others pause_ns apart, give or take: requests made all
    at once would queue in front of everything that others wait for. A prefetch delivers nothing, so the step has no
    accesses: it changes when bytes arrive.
    """

    addresses_stream: ClassVar[bool] = True
    op: Literal["prefetch_weights"] = "prefetch_weights"
    matrix: MatrixName
    layer: Expr
    stream: Name
    skip: int = Field(ge=0, le=4096)
    count: int = Field(ge=1, le=4096)
    stride: int = Field(default=1, ge=1, le=64)
    delay_ns: int = Field(default=0, ge=0, le=1_000_000)
    pause_ns: int = Field(default=0, ge=0, le=1_000_000)
