"""The op registry: one line per op, one module per op."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from amk.schedule_ir.ops.add_residual import AddResidualOp
from amk.schedule_ir.ops.argmax_rows import ArgmaxRowsOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op, Work
from amk.schedule_ir.ops.begin import BeginOp
from amk.schedule_ir.ops.census import CensusOp
from amk.schedule_ir.ops.combine import CombineOp
from amk.schedule_ir.ops.draw import DrawOp
from amk.schedule_ir.ops.embed import EmbedOp
from amk.schedule_ir.ops.finish import FinishOp
from amk.schedule_ir.ops.gather import GatherOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.merge import MergeOp
from amk.schedule_ir.ops.narrow import NarrowOp
from amk.schedule_ir.ops.peak import PeakOp
from amk.schedule_ir.ops.prefetch_cache import PrefetchCacheOp
from amk.schedule_ir.ops.reduce_splits import ReduceSplitsOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.ops.report import ReportOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.ops.select import SelectOp
from amk.schedule_ir.ops.select_draw import SelectDrawOp
from amk.schedule_ir.ops.stage import StageOp
from amk.schedule_ir.ops.stage_attention import StageAttentionOp
from amk.schedule_ir.ops.stage_norm import StageNormOp
from amk.schedule_ir.ops.store_rows import StoreRowsOp
from amk.schedule_ir.ops.swiglu import SwigluOp
from amk.schedule_ir.ops.sync import BarrierOp, SignalOp, WaitOp

AnyOp = Annotated[
    WaitOp
    | SignalOp
    | BarrierOp
    | BeginOp
    | EmbedOp
    | StageNormOp
    | GemvOp
    | PrefetchCacheOp
    | RefillOp
    | StoreRowsOp
    | RopeAppendOp
    | AttendOp
    | MergeOp
    | CombineOp
    | ReduceSplitsOp
    | StageAttentionOp
    | AddResidualOp
    | SwigluOp
    | StageOp
    | ArgmaxRowsOp
    | SelectOp
    | PeakOp
    | CensusOp
    | ReportOp
    | GatherOp
    | NarrowOp
    | DrawOp
    | SelectDrawOp
    | FinishOp,
    Field(discriminator="op"),
]

OPS: dict[str, type[Op]] = {
    cls.model_fields["op"].default: cls
    for cls in (
        WaitOp,
        SignalOp,
        BarrierOp,
        BeginOp,
        EmbedOp,
        StageNormOp,
        GemvOp,
        PrefetchCacheOp,
        RefillOp,
        StoreRowsOp,
        RopeAppendOp,
        AttendOp,
        MergeOp,
        CombineOp,
        ReduceSplitsOp,
        StageAttentionOp,
        AddResidualOp,
        SwigluOp,
        StageOp,
        ArgmaxRowsOp,
        SelectOp,
        PeakOp,
        CensusOp,
        ReportOp,
        GatherOp,
        NarrowOp,
        DrawOp,
        SelectDrawOp,
        FinishOp,
    )
}

__all__ = ["OPS", "Access", "AnyOp", "BarrierOp", "Geometry", "Memory", "Op", "SignalOp", "WaitOp", "Work"]
