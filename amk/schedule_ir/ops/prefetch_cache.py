"""Bring the earlier keys and values of a worker into the L2 cache before its query is known."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.schedule_ir.expr import Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Op
from amk.schedule_ir.ops.precondition import BLOCK, DIM, INDEX, Need


class PrefetchCacheOp(Op):
    """Ask for the cache rows of the first block of the worker's split, up to the position.

    A prefetch delivers nothing, so the step has no accesses: it changes when bytes arrive.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos",)
    needs: ClassVar[tuple[Need, ...]] = (
        Need("block", BLOCK * DIM * 2 < INDEX, "the bytes of a block are counted in 32 bits"),
    )
    op: Literal["prefetch_cache"] = "prefetch_cache"
    layer: Expr
    k_cache: Name
    v_cache: Name
