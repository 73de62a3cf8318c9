"""Does it fit: bytes of device memory as the driver reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from amk.models.model_spec import ModelSpec
from amk.planner.buffers import global_buffers
from amk.planner.formats import Runs, label_of
from amk.planner.settings import Settings, kv_block, splits_of, turns_of
from amk.planner.storage import packed_bytes
from amk.report.diagnostic import AmkError, Diagnostic, because
from amk.schedule_ir.schedule import KvLayout
from amk.targets.target import Target

DEFAULT_CONTEXT = 32_768
RESERVE_BYTES = 768 * 2**20
"""Kept free for the CUDA context, the module and the host framework's own allocations."""


@dataclass(frozen=True)
class Budget:
    """Bytes of device memory by purpose."""

    weights: int
    kv: int
    activations: int
    reserve: int
    device: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations + self.reserve

    def lines(self) -> list[str]:
        rows = [("weights", self.weights), ("kv cache", self.kv), ("activations", self.activations)]
        rows += [("reserve", self.reserve), ("sum", self.total), ("device memory", self.device)]
        return [f"{name:<14}{size:>18,} bytes" for name, size in rows]


def budget(model: ModelSpec, target: Target, settings: Settings, workers: int, chunks: Runs, context: int) -> Budget:
    """Memory of the plan with `context` positions."""
    block = kv_block(settings, model, turns_of(settings, model, workers))
    splits = splits_of(settings, model, workers, context)
    kv = KvLayout(context=context, block=block, splits=splits, dtype=settings.kv_dtype)
    sizes = {b.name: b.bytes for b in global_buffers(model, kv, settings, workers, chunks)}
    cache = sizes.pop("k_cache", 0) + sizes.pop("v_cache", 0)
    constant = packed_bytes(model, chunks) + sizes.pop("embedding", 0)
    sizes.pop("weights")
    return Budget(constant, cache, sum(sizes.values()), RESERVE_BYTES, target.hbm_bytes)


def largest_context(model: ModelSpec, target: Target, settings: Settings, workers: int, chunks: Runs) -> int:
    """Most cache positions that fit, at most the model's own; 0 if none do."""

    def fits(context: int) -> bool:
        return budget(model, target, settings, workers, chunks, context).total <= target.hbm_bytes

    low, high = 0, model.max_context
    if fits(high):  # so it is for most
        return high
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def choose_context(
    model: ModelSpec,
    target: Target,
    settings: Settings,
    workers: int,
    chunks: Runs,
    positions: int | None,
    others: Callable[[], Iterable[Runs]] = tuple,
) -> int:
    """The context of the plan; AMK011 if `positions` (or any) does not fit or exceeds what the model was trained for.

    others: chunks in other formats, whose largest contexts the refusal names too.
    """
    most = largest_context(model, target, settings, workers, chunks)
    context = positions or min(DEFAULT_CONTEXT, most)
    if 1 <= context <= most:
        return context
    if context > model.max_context:
        message = f"{model.name} has {model.max_context:,} positions, {context:,} were asked for"
        raise AmkError(Diagnostic("AMK011", message, help=f"use --max-context {min(most, model.max_context)}"))
    need = budget(model, target, settings, workers, chunks, max(context, 1))
    short = need.total - need.device
    facts = tuple(because(line) for line in [*need.lines(), f"{'shortfall':<14}{short:>18,} bytes"])
    stored = _stored(chunks)
    fitting = [(_stored(each), largest_context(model, target, settings, workers, each)) for each in others()]
    rest = "".join(f", in {form}: {largest:,}" for form, largest in fitting if largest > most)
    own = f"largest context that fits in {stored}: {most:,}" if most else f"no context fits in {stored} on this GPU"
    help_line = own + (rest if most or not rest else f"; largest{rest.removeprefix(',')}")
    message = f"{model.name} in {stored} with {max(context, 1):,} positions does not fit on {target.name}"
    raise AmkError(Diagnostic("AMK011", message, facts=facts, help=help_line))


def _stored(chunks: Runs) -> str:
    """The formats of a plan in one word."""
    return label_of(tuple((count, {n: chunk.format for n, chunk in each.items()}) for count, each in chunks))
