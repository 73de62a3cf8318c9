"""The kernels of `amk.lowering.phases` as CUDA: the op bodies of the persistent kernel between two kernel boundaries.

Every kernel lets the next one start at once, fills its rings with weights, and only then waits for the kernel before
it (programmatic dependent launch). Shared memory is laid out per kernel: what its ops use, then rings as deep as its
weights and the block's share of the SM allow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amk.lowering import refusal
from amk.lowering.abi import Abi, abi, member
from amk.lowering.phases import Chunks, Phase, Phases, chunks_of, per_layer, phases, plain_buffers
from amk.lowering.plan_constants import code_includes, codes_of, constant_array, identifier, plan_struct, ring_type
from amk.lowering.step_struct import step_struct
from amk.models.matrices import matrix
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.memory import Buffer, Stream
from amk.schedule_ir.ops import AnyOp, BarrierOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Role, Schedule
from amk.targets.target import RESERVED_SMEM_PER_BLOCK, STATIC_SMEM_PER_BLOCK

ALIGN = 128
MBARRIER_BYTES = 8
MAX_SLOTS = 64


@dataclass(frozen=True)
class PhaseKernel:
    """One kernel of the translation unit. blocks_per_sm: how many of them an SM is meant to hold."""

    symbol: str
    shared_bytes: int
    blocks_per_sm: int


@dataclass(frozen=True)
class PhaseSource:
    """source: the translation unit. launches: (kernel, layer) of one token. buffers: the global allocations."""

    source: str
    kernels: tuple[PhaseKernel, ...]
    launches: tuple[tuple[int, int], ...]
    buffers: tuple[Buffer, ...]
    layout: Abi

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The kernels' one argument: the addresses, the layer, the number of the token."""
        return np.dtype([*self.layout.dtype.descr, ("layer", "<u8"), ("number", "<u8")])

    def argument(self, values: dict[str, int], layer: int, number: int) -> NDArray[np.void]:
        block = np.zeros((), self.dtype)
        for name, value in (values | {"layer": layer, "number": number}).items():
            block[name] = value
        return block


def emit_phases(schedule: Schedule, blocks: tuple[int, ...] | int = 1) -> PhaseSource:
    """The kernels of `schedule`, laid out so that `blocks` of them (one number, or one a kernel) fit an SM together.

    A kernel too large for that is laid out for fewer. AMK401 for one too large for an SM, AMK601 for a target without
    dependent launch, or a schedule that is not cut into kernels.
    """
    schedule.target.require("bulk_copy", "a graph of overlapping kernels")
    found = phases(schedule)
    each = (blocks,) * len(found.kernels) if isinstance(blocks, int) else blocks
    buffers = plain_buffers(schedule, found.carried)
    layout = abi(schedule.model_copy(update={"buffers": buffers}))
    parts, kernels, headers = [], [], set[str]()
    for number, (phase, count) in enumerate(zip(found.kernels, each, strict=True)):
        printer = _Kernel(schedule, found, number, count, buffers)
        parts.append(printer.text(phase))
        headers |= printer.headers
        kernels.append(PhaseKernel(printer.symbol, printer.bytes, printer.blocks))
    size = 8 * (len(layout.dtype.names or ()) + 2)
    source = (
        '#include "amk/context.cuh"\n#include "amk/cells.cuh"\n#include "amk/ring.cuh"\n'
        + code_includes(codes_of(schedule.streams[0]))
        + "".join(f'#include "amk/ops/{name}.cuh"\n' for name in sorted(headers))
        + "\nnamespace {\n\n"
        + "".join(constant_array(f"t_{identifier(n)}", v) for n, v in sorted(schedule.tables.items()))
        + layout.struct()
        + "struct PhaseArgument {\n  Globals globals;\n  amk::u64 layer, number;\n};\n"
        + f'static_assert(sizeof(PhaseArgument) == {size}, "host layout");\n'
        + plan_struct(schedule)
        + "struct NoRing {};\nstruct __align__(16) RingWork {\n  int first, per_layer, count;\n};\n\n"
        + "}  // namespace\n\n"
        + "\n".join(parts)
    )
    return PhaseSource(source, tuple(kernels), found.launches, buffers, layout)


def _ring_work(schedule: Schedule, chunks: Chunks) -> str:
    """Where every (worker, agent) begins in the packed weights, and how many chunks it takes, 16 bytes each.

    In global memory: the tables of all kernels of a plan with many warps are more than the 64 KiB of constants.
    """
    layout = stream_layout(schedule, schedule.streams[0])
    first = layout.base.reshape(-1) + np.array(chunks.at)
    rows = zip(first.tolist(), per_layer(schedule, layout).tolist(), chunks.count, strict=True)
    entries = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in rows)
    return f"__device__ const RingWork ring_work[{len(chunks.count)}] = {{{entries}}};\n"


class _Kernel:
    """Prints one kernel."""

    def __init__(
        self, schedule: Schedule, phases: Phases, number: int, blocks: int, buffers: tuple[Buffer, ...]
    ) -> None:
        phase = phases.kernels[number]
        self.schedule, self.number, self.blocks = schedule, number, blocks
        self.symbol = f"amk_phase_{number}"
        self.chunks = chunks_of(schedule, phases, number)
        self.roles = {role.name: role for role in schedule.roles}
        self.stream = schedule.streams[0]
        self.agents = self.roles[self.stream.role]
        self.carried = phases.carried
        self.headers: set[str] = set()
        self.structs: list[str] = []
        arrays, self.ring_at = _arrays(schedule, phase, phases.carried)
        self.slots, self.bytes = self._ring(self.ring_at)
        while self.slots < self._fewest() and self.blocks > 1:
            self.blocks -= 1
            self.slots, self.bytes = self._ring(self.ring_at)
        if self.slots < self._fewest():
            raise refusal.unsupported(
                "AMK401", f"a kernel of the graph has no room for a ring behind {self.ring_at:,} bytes"
            )
        launch = schedule.launch
        registers = schedule.target.regs_per_sm // 4 // (-(-launch.warps * self.blocks // 4) * 32) // 8 * 8
        launch = launch.model_copy(update={"registers": min(registers, launch.registers)})
        self.inner = schedule.model_copy(update={"buffers": (*buffers, *arrays), "launch": launch})

    def _ring(self, offset: int) -> tuple[int, int]:
        """Slots of a warp's ring behind `offset` bytes, and the bytes of everything."""
        if self.chunks is None:
            return 0, offset
        target, warps = self.schedule.target, self.agents.count
        room = target.smem_per_sm // self.blocks - RESERVED_SMEM_PER_BLOCK - STATIC_SMEM_PER_BLOCK
        room = min(room, target.smem_per_block - STATIC_SMEM_PER_BLOCK) - offset
        slot = warps * (self.stream.chunk_bytes + MBARRIER_BYTES)
        slots = max(0, min(room // slot, max(self.chunks.count), MAX_SLOTS))
        return slots, offset + slots * slot

    def _fewest(self) -> int:
        """Slots without which a warp would wait for every copy."""
        return 0 if self.chunks is None else min(2, max(self.chunks.count))

    def text(self, phase: Phase) -> str:
        body = "".join(self._piece(piece.ahead, [s.op for s in piece.steps]) for piece in phase.pieces)
        name, threads = f"phase_{self.number}", self.schedule.launch.warps * 32
        tables, ring = "", "using Ring = NoRing;\n"
        if self.chunks is not None:
            tables = _ring_work(self.schedule, self.chunks)
            ring = ring_type(self.schedule.model_copy(update={"streams": (self._own_stream(),)}))
        return f"""namespace {name} {{

{tables}{ring}using Ctx = amk::Context<Plan, Globals, Ring>;
{"".join(self.structs)}
extern "C" __global__ void __launch_bounds__({threads}, {self.blocks})
{self.symbol}(const __grid_constant__ PhaseArgument argument) {{
  extern __shared__ __align__(128) char shared[];
  __shared__ amk::sync::Watchdog dog;
  const Globals& globals = argument.globals;
  amk::sync::let_later_kernels_start();
  if (threadIdx.x == 0) {{
    amk::sync::watchdog_start(dog, globals.watchdog_log, globals.abort_word, globals.stall_ns, blockIdx.x);
  }}
  amk::sync::cta_barrier<0, {threads}>();
  Ctx c{{globals, shared, dog, Ring{{}}, Plan::Shares::of(blockIdx.x), static_cast<int>(blockIdx.x),
        static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32)}};
  const int layer = static_cast<int>(argument.layer);
  c.n = static_cast<int>(argument.number);
{self._start(self.chunks)}  amk::sync::wait_for_earlier_kernels();
{body}}}

}}  // namespace {name}
"""

    def _own_stream(self) -> Stream:
        return self.stream.model_copy(update={"slots": self.slots, "run_ahead": True})

    def _start(self, chunks: Chunks | None) -> str:
        """The rings begin with the kernel's weights, which no kernel writes: before the wait for the others."""
        if chunks is None:
            return ""
        size, ring = self.stream.chunk_bytes, self.slots * self.stream.chunk_bytes
        first, count = self.agents.first, self.agents.count
        return f"""  if ({_in_role(self.agents)}) {{
    const int agent = c.warp - {first};
    const RingWork work = ring_work[c.worker * {count} + agent];
    const int chunk = work.first + layer * work.per_layer;
    c.ring.start(shared + {self.ring_at} + agent * {ring},
                 reinterpret_cast<amk::u64*>(shared + {self.ring_at + count * ring}) + agent * {self.slots},
                 amk::row_at<{size}>(reinterpret_cast<const char*>(globals.{member(self.stream.source)}), chunk),
                 work.count, 1, c.lane);
  }}
"""

    def _piece(self, ahead: int, ops: list[AnyOp]) -> str:
        return f"  c.l = layer + {ahead};\n" + "".join(self._step(op) for op in ops)

    def _step(self, op: AnyOp) -> str:
        if isinstance(op, BarrierOp):
            return f"  amk::sync::cta_barrier<{op.id}, {op.agents * 32}>();\n"
        name = f"S{len(self.structs)}"
        self.structs.append(step_struct(name, op, self.inner, self.carried))
        self.headers.add(op.op)
        call = f"c.enter_step(); amk::ops::{op.op}<{name}>(c);"
        role = self.roles[op.role]
        if role.count != self.schedule.launch.warps:
            call = f"if ({_in_role(role)}) {{ {call} }}"
        return f"  {call}\n"


def _in_role(role: Role) -> str:
    return f"c.warp >= {role.first} && c.warp < {role.first + role.count}"


def _arrays(schedule: Schedule, phase: Phase, carried: frozenset[str]) -> tuple[list[Buffer], int]:
    """The shared arrays that the kernel's ops use, one behind the other, and the offset behind them."""
    ops = [op for _, op in phase.ops()]
    used = {value for op in ops for field, value in op if isinstance(value, str) and field not in ("op", "role")}
    width = {op.x: _columns(schedule, op) for op in ops if isinstance(op, GemvOp)}
    found, offset = [], 0
    for buffer in schedule.buffers:
        if buffer.space != "shared" or buffer.name not in used - carried:
            continue
        change: dict[str, object] = {"offset": offset}
        if buffer.name in width and buffer.dtype == "bf16" and len(buffer.shape) == 1:
            change["shape"] = (min(buffer.elements, width[buffer.name]),)
        found.append(buffer.model_copy(update=change))
        offset += -(-found[-1].bytes // ALIGN) * ALIGN
    return found, offset


def _columns(schedule: Schedule, op: GemvOp) -> int:
    """Elements of x that the product reads, with the padding of its last chunk."""
    columns = schedule.streams[0].chunk(op.matrix, op.layer_at({"l": 0})).columns
    return matrix(schedule.model, op.matrix).k_chunks(columns) * columns
