"""Does everything fit: workers on the GPU, buffers in memory, numbers in 32 bits.

Resources. Do all workers run at once: arithmetic against the target. Properties: cooperative launch (only then is
grid-wide progress promised); workers <= SMs * CTAs per SM, where a CTA needs its shared memory, the watchdog's and the
reserved KiB in units of 128 bytes, its threads, its named barriers, and its registers in allocation units, each warp's
inside one quarter of the register file; shared buffers inside the launch's shared memory and aligned; global buffers
inside device memory. Numbers of the compiled kernel replace the schedule's own. The file's limits count up to what is
known of the GPU.

Source: CUDA C++ Programming Guide, compute capability tables; `cuda_occupancy.h` of CUDA 13.

Widths. Numbers that the device would cut off are refused, not wrapped.

The kernel has expressions as C++ (`lowering/expression.py`): table entries, `worker` and `l` are `int`, `t` is the
`unsigned` epoch, a number from 2^31 on is a 64-bit literal. Counters, thresholds and amounts are 32-bit words, and
addresses have 64 bits. A value that does not fit is another one on the device than in the schedule that was checked.

Property:
    (W1) indices, thresholds and amounts are evaluated without overflow: the magnitudes of all terms but those of `t`
         add up to less than 2^31, a constant from 2^31 on left out; indices as numbers within their counter
    (W2) a threshold grows by less than 2^31 a token; with W1, and counters that are no further from it (`tokens`),
         the comparison of two words says what that of two integers does
    (W3) the positions of all splits, active or not, have numbers of 31 bits
Tags are the business of `handoffs`, elements of buffers and chunks of a launch that of `launch_needs`.

Codes: AMK204 for what is compared or added, AMK103 for what is addressed. Cost: one look at every step as written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.expr import AGENT, CONST, EPOCH, WORKER, Expr, coefficient
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Schedule, Wait
from amk.schedule_ir.shared_memory import extent
from amk.targets.target import MAX_THREADS_PER_BLOCK, RESERVED_SMEM_PER_BLOCK, STATIC_SMEM_PER_BLOCK
from amk.validator.program.trace import Path, all_sites

WARP = 32
REGISTER_UNIT = 256
"""Registers are allocated to a warp in multiples of this."""
PARTS = 4
"""Of an SM, each with as many of its registers; a warp lives in one of them."""
SHARED_UNIT = 128
"""Bytes in multiples of which a block gets shared memory."""
MORE_BARRIERS = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
"""Capabilities whose SMs have two named barriers for each block that they can hold; others have one."""


@dataclass(frozen=True)
class CompiledResources:
    """What the compiled kernel really uses: registers per thread, bytes of static shared memory."""

    registers: int
    static_shared: int = STATIC_SMEM_PER_BLOCK


def check_resources(schedule: Schedule, compiled: CompiledResources | None = None) -> list[Diagnostic]:
    """All findings."""
    return [
        *_shared(schedule, compiled), *_global(schedule), *_residency(schedule, compiled), *_features(schedule),
    ]  # fmt: skip


def _shared(schedule: Schedule, compiled: CompiledResources | None) -> Iterator[Diagnostic]:
    launch, target = schedule.launch, schedule.target.as_known()
    for i, buffer in enumerate(schedule.buffers):
        if buffer.space != "shared":
            continue
        end = (buffer.offset or 0) + buffer.bytes
        if end > launch.shared_bytes:
            message = f"'{buffer.name}' ends at byte {end:,}, the launch has {launch.shared_bytes:,} of shared memory"
            yield finding("AMK401", message, ("buffers", i, "offset"))
        if (buffer.offset or 0) % buffer.align:
            message = f"'{buffer.name}' at {buffer.offset} is not aligned to {buffer.align} bytes"
            yield finding("AMK406", message, ("buffers", i, "offset"))
    need = max(launch.shared_bytes, extent(schedule.buffers)) + _static(compiled)
    if need > target.smem_per_block:
        message = (
            f"a worker needs {need:,} bytes of shared memory, a block on {target.name} has {target.smem_per_block:,}"
        )
        yield finding("AMK401", message, ("launch", "shared_bytes"))


def _static(compiled: CompiledResources | None) -> int:
    return compiled.static_shared if compiled else STATIC_SMEM_PER_BLOCK


def _global(schedule: Schedule) -> Iterator[Diagnostic]:
    """Every global buffer is allocated, at once."""
    need, target = sum(b.bytes for b in schedule.buffers if b.space == "global"), schedule.target.as_known()
    if need > target.hbm_bytes:
        message = f"the buffers need {need:,} bytes, {target.name} has {target.hbm_bytes:,}"
        yield finding("AMK011", message, ("buffers",))


def _residency(schedule: Schedule, compiled: CompiledResources | None) -> Iterator[Diagnostic]:
    launch, target = schedule.launch, schedule.target.as_known()
    threads, ctas = launch.warps * WARP, launch.ctas_per_sm
    if not launch.cooperative:
        yield finding(
            "AMK402",
            "the launch is not cooperative",
            ("launch", "cooperative"),
            "then no progress across the grid is promised",
        )
    if threads > MAX_THREADS_PER_BLOCK:
        yield finding("AMK402", f"{threads} threads, a block has at most {MAX_THREADS_PER_BLOCK}", ("launch", "warps"))
    registers = compiled.registers if compiled else launch.registers
    if compiled and compiled.registers > launch.registers:
        message = f"the kernel uses {compiled.registers} registers a thread, the schedule allows {launch.registers}"
        yield finding("AMK403", message, ("launch", "registers"))
    per_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    shared = launch.shared_bytes + RESERVED_SMEM_PER_BLOCK + _static(compiled)
    barriers = target.max_blocks_per_sm * (2 if target.capability in MORE_BARRIERS else 1)
    limits = {
        "shared memory": target.smem_per_sm // (-(-shared // SHARED_UNIT) * SHARED_UNIT),
        "threads": target.max_threads_per_sm // threads,
        "registers": PARTS * (target.regs_per_sm // PARTS // per_warp) // launch.warps,
        "named barriers": barriers // _named_barriers(schedule),
        "blocks": target.max_blocks_per_sm,
    }
    scarce = min(limits, key=lambda name: limits[name])
    if limits[scarce] < ctas:
        message = f"{ctas} worker(s) per SM, {scarce} allow {limits[scarce]}"
        yield finding("AMK402", message, ("launch", "ctas_per_sm"), "a worker that is not resident never signals")
    if launch.workers > target.sms * ctas:
        message = (
            f"{launch.workers} workers, {target.name} holds {target.sms * ctas}: {ctas} on each of its {target.sms} SMs"
        )
        yield finding("AMK402", message, ("launch", "workers"), "a worker that is not resident never signals")


def _named_barriers(schedule: Schedule) -> int:
    """Barriers that a block has: up to the largest number that is used; the kernel itself uses number 0."""
    return 1 + max((s.step.op.id for s in all_sites(schedule) if isinstance(s.step.op, BarrierOp)), default=0)


def _features(schedule: Schedule) -> Iterator[Diagnostic]:
    target = schedule.target.as_known()
    for i, stream in enumerate(schedule.streams):
        feature = "bulk_copy" if stream.engine == "bulk" else "cp_async"
        if feature not in target.features:
            message = f"stream '{stream.name}' needs {feature}, {target.name} lacks it"
            yield finding("AMK601", message, ("streams", i, "engine"))


HALF: Final = 2**31


def check_widths(schedule: Schedule) -> list[Diagnostic]:
    """All findings."""
    return [*_expressions(schedule), *_positions(schedule)]


def _expressions(schedule: Schedule) -> Iterator[Diagnostic]:
    """W1, W2."""
    shapes = {c.name: c.shape for c in schedule.counters}
    most = {name: max(map(abs, column), default=0) for name, column in schedule.tables.items()}
    most |= {WORKER: schedule.launch.workers - 1, CONST: 1, EPOCH: 0}
    sizes = {r.name: r.count for r in schedule.roles}
    for site in all_sites(schedule):
        known = most | {AGENT: sizes[site.step.op.role] - 1, "l": (site.layers or 1) - 1}
        entries: list[tuple[Path, str, Expr, str]] = []
        for path, use in site.uses:
            field, value = ("at_least", use.at_least) if isinstance(use, Wait) else ("add", use.add)
            entries.append(((*path, field), field, value, use.counter))
            entries.append(((*path, "index"), "index", _flat(shapes[use.counter], use.index), use.counter))
        for path, field, expr, counter in entries:
            if (reach := _magnitude(expr, known)) >= HALF:
                message = f"{field} of '{counter}' is computed from terms of up to {reach:,}"
                yield finding("AMK204", message, path, "the device computes it in 32 bits")
            elif coefficient(expr, EPOCH) >= HALF:
                message = f"a threshold of '{counter}' grows by {coefficient(expr, EPOCH):,} per token"
                yield finding("AMK204", message, path, "the device compares words of 32 bits")


def _flat(shape: tuple[int, ...], index: tuple[Expr, ...]) -> Expr:
    """The number of a counter within its family, term by term as `lowering/abi.py` adds them up."""
    total: dict[str, int] = {}
    stride = 1
    for size, expr in zip(reversed(shape), reversed(index), strict=True):
        for name, factor in ({CONST: expr} if isinstance(expr, int) else expr).items():
            total[name] = total.get(name, 0) + abs(factor) * stride
        stride *= size
    return total


def _magnitude(expr: Expr, most: dict[str, int]) -> int:
    """The sum of the terms' magnitudes, without a constant that makes it a computation in 64 bits."""
    if isinstance(expr, int):
        return 0
    terms = {name: abs(factor) * most[name] for name, factor in expr.items()}
    return sum(terms.values()) - (terms.get(CONST, 0) if terms.get(CONST, 0) >= HALF else 0)


def _positions(schedule: Schedule) -> Iterator[Diagnostic]:
    """W3."""
    kv = schedule.kv
    if kv.block * kv.splits >= HALF:
        message = f"{kv.splits:,} splits of blocks of {kv.block:,} positions"
        yield finding("AMK103", message, ("kv",), "ops number positions in 32 bits")
