"""Model + target + settings -> schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from amk.planner.buffers import global_buffers
from amk.planner.fetches import require_whole_fetches
from amk.planner.fit import choose_context
from amk.planner.formats import BF16, Chunks, Formats, formats
from amk.planner.program import Author
from amk.planner.settings import FAST, Settings, handoff_of, kv_block, splits_of
from amk.planner.shares import attention_tables, head_handoff, row_tables
from amk.planner.storage import Shares, choose_chunks, shared_plan
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.matrices import MATRICES, MatrixName, matrix
from amk.schedule_ir.memory import Counter
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.ops.reduce_splits import sliceable
from amk.schedule_ir.ranking import LAST
from amk.schedule_ir.schedule import KvLayout, Launch, Program, Role, Schedule
from amk.schedule_ir.target import Target
from amk.schedule_ir.weight_format import FormatName, label

REGISTER_UNIT = 8
"""Registers are allocated to a thread in multiples of 8 (CUDA occupancy rules)."""
NARROWER: tuple[FormatName, ...] = ("int8", "int4-g128")
"""Formats that are named when a model does not fit, widest first."""


def plan(
    model: ModelSpec,
    target: Target,
    *,
    settings: Settings = FAST,
    wanted: Formats = BF16,
    max_context: int | None = None,
    workers: int | None = None,
) -> Schedule:
    """The decode schedule of `model` on `target`.

    max_context: cache positions; default min(the model's, 32,768, what fits). workers: default `choose_workers`.
    wanted: the format of every matrix.
    Raises AmkError AMK011 (exit 2) with the sum and the shortfall when the model does not fit or has more KV heads than
    there are workers, AMK401 when shared memory does not hold it.
    """
    count = workers if workers is not None else settings.workers or choose_workers(model, target)
    _require_places(count, model, target)
    settings = replace(settings, handoff=handoff_of(settings, model, count))
    rows_of = row_tables(model, count, wanted)
    chunks = choose_chunks(model, target, settings, rows_of, wanted)
    context = choose_context(
        model, target, settings, count, chunks, max_context, lambda: _narrower(model, target, settings, count)
    )
    kv = kv_layout(model, settings, count, context)
    tables = rows_of | attention_tables(model, count, kv.splits)
    handoff = head_handoff(model, tables) if settings.head_handoff else None
    shared = shared_plan(model, target, settings, chunks, tables)
    rows = {n.removesuffix(".count"): 8 * max(c) for n, c in tables.items() if n.endswith(".count")}
    rows |= {"o": rows["hidden"], "down": rows["hidden"]}
    held = held_back(model, settings, target, chunks, tables, shared.stream.slots)
    # A worker without rows of some matrix is held back by hints alone, so then they must be exact.
    exact = any(matrix(model, name).groups < count for name in MATRICES)
    slack = 0 if exact else settings.hint_slack
    reduced = settings.reduce_from is not None and kv.splits >= settings.reduce_from
    reduced = reduced and sliceable(model.heads, model.kv_heads, model.head_dim, kv.splits)
    require_whole_fetches(model, settings, reduced, wanted)
    author = Author(
        model,
        settings,
        count,
        rows,
        handoff.delta if handoff else None,
        held,
        slack,
        kv.splits if reduced else None,
        wanted,
    )
    stored = label(wanted) if kv.dtype == "bf16" else f"{label(wanted)}-kv-{kv.dtype}"
    registers = target.regs_per_sm // (settings.warps * 32) // REGISTER_UNIT * REGISTER_UNIT
    return Schedule(
        name=f"{model.name}-{target.name}-{stored}"[:64],
        plan=settings.plan,
        model=model,
        target=target,
        launch=Launch(
            workers=count, warps=settings.warps, shared_bytes=shared.bytes, registers=min(registers, 255),
            max_tokens=settings.max_tokens,
        ),
        kv=kv,
        roles=(Role(name="all", first=0, count=settings.warps), Role(name="w0", first=0, count=1)),
        tables=tables | (handoff.tables if handoff else {}),
        buffers=(*global_buffers(model, kv, settings, count, chunks), *shared.buffers),
        counters=counters(model, settings),
        streams=(shared.stream,),
        programs=(Program(name="decode", first=0, count=count, body=author.body()),),
    )  # fmt: skip


def _narrower(model: ModelSpec, target: Target, settings: Settings, workers: int) -> list[Chunks]:
    """Chunks of the same plan in formats of fewer bytes, widest first."""
    every = [formats(form) for form in NARROWER]
    return [choose_chunks(model, target, settings, row_tables(model, workers, each), each) for each in every]


def _require_places(workers: int, model: ModelSpec, target: Target) -> None:
    """AMK011 unless every KV head has a worker, AMK402 unless every worker has an SM of its own."""
    if workers < model.kv_heads:
        message = f"{model.kv_heads} KV heads need as many workers, there are {workers}: each has workers of its own"
        raise AmkError(Diagnostic("AMK011", message))
    if workers > target.sms:
        raise AmkError(Diagnostic("AMK402", f"{workers} workers, {target.name} has {target.sms} SMs"))


def choose_workers(model: ModelSpec, target: Target) -> int:
    """One per SM; for a model with fewer row groups than SMs, as many as all own rows of both QKV and gate-up."""
    qkv, gate_up = (matrix(model, name).groups for name in ("qkv", "gate_up"))
    return target.sms if gate_up >= target.sms else min(qkv, gate_up)


def held_back(
    model: ModelSpec, settings: Settings, target: Target, chunks: Chunks, tables: Shares, slots: int
) -> dict[MatrixName, int]:
    """Refills that the product of each matrix defers: `held_refills` of a ring, where an agent drains twice as many.

    Behind a full ring of requests, what a worker publishes and polls waits for microseconds. A product of few chunks
    has drained its ring before it could hold anything back.
    """
    most = int(slots * settings.held_refills)
    if not target.has("bulk_copy") or not settings.run_ahead or not most:
        return {}
    found: dict[MatrixName, int] = {}
    for name, chunk in chunks.items():
        groups = min(tables[f"{'hidden' if name in ('o', 'down') else name}.count"])
        if groups * matrix(model, name).k_chunks(chunk.columns) // settings.warps >= 2 * most:
            found[name] = most
    return found


def kv_layout(model: ModelSpec, settings: Settings, workers: int, context: int) -> KvLayout:
    splits = splits_of(settings, model, workers, context)
    return KvLayout(context=context, block=kv_block(settings, model), splits=splits, dtype=settings.kv_dtype)


def counters(model: ModelSpec, settings: Settings) -> tuple[Counter, ...]:
    """One counter per hand-off and layer, so that only the token edge needs epoch separation."""
    heads = model.kv_heads if settings.head_handoff else 1
    kind: Literal["fenced", "hint"] = "hint" if settings.handoff == "tagged" else "fenced"
    shapes = {"qkv": (model.layers, heads), "split": (model.layers, model.kv_heads), "best": (1,)} | {
        n: (model.layers,) for n in ("attn", "h_mid", "act", "h_out")
    }
    out = tuple(Counter(name=name, shape=shape, handoff=kind) for name, shape in shapes.items())
    if settings.sampling == "greedy":
        return out
    return (*out, Counter(name="draw", shape=(1,), handoff=kind), Counter(name="census", shape=(LAST,)))
