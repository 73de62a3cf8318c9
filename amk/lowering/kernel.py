"""A schedule's kernel: its source, its machine code, and the proof that it stays within the schedule's budget.

The validator decides co-residency from what the schedule says about registers and shared memory; here the compiled code
is held to those words. Without this check a kernel that spills or grows would still be launched under a verdict that
was given for another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from amk.lowering import refusal
from amk.lowering.compile import Compiled, compile_cuda
from amk.lowering.cubin import Budget, Resources, check_budget
from amk.lowering.emit import KERNEL, emit
from amk.lowering.readback import Instruction, read_ptx
from amk.report.diagnostic import shown
from amk.schedule_ir.schedule import Schedule
from amk.schedule_ir.target import RESERVED_SMEM_PER_BLOCK


@dataclass(frozen=True)
class BuiltKernel:
    """One schedule compiled for one architecture, within its budget. synchronisation: what its PTX does, in order."""

    schedule: Schedule
    source: str
    compiled: Compiled
    synchronisation: tuple[Instruction, ...]

    @property
    def resources(self) -> Resources:
        return self.compiled.resources[KERNEL]

    @property
    def shared_bytes(self) -> int:
        """Static and dynamic shared memory of a worker, without what the system reserves."""
        return self.resources.static_smem + self.schedule.launch.shared_bytes


def budget_of(schedule: Schedule) -> Budget:
    """What a thread and a worker may use: the launch's registers, no spills, the target's shared memory of a block."""
    launch = schedule.launch
    return Budget(threads=launch.warps * 32, registers=launch.registers, shared_bytes=schedule.target.smem_per_block)


def build(schedule: Schedule, *, cache_directory: Path | None = None, use_cache: bool = True) -> BuiltKernel:
    """Emit and compile `schedule` for its target.

    Raises AMK403 for registers or spills over budget, AMK401 for shared memory of a block, AMK402 when the workers of
    one SM do not fit it together, AMK601 for an architecture that cannot be compiled for, AMK605 without a compiler.
    """
    source = emit(schedule)
    compiled = compile_cuda(source, schedule.target.arch, cache_directory=cache_directory, use_cache=use_cache)
    built = BuiltKernel(schedule, source, compiled, tuple(read_ptx(compiled.ptx).get(KERNEL, ())))
    check_budget(KERNEL, built.resources, schedule.launch.shared_bytes, budget_of(schedule))
    check_co_residency(built)
    return built


def check_co_residency(built: BuiltKernel) -> None:
    """AMK402 unless the SMs hold all workers at once.

    workers <= sms * ctas_per_sm, and ctas_per_sm blocks fit one SM in registers, threads and shared memory.
    """
    launch, target = built.schedule.launch, built.schedule.target
    count, threads = launch.ctas_per_sm, launch.warps * 32
    shared = built.shared_bytes + RESERVED_SMEM_PER_BLOCK
    limits = (
        ("workers", launch.workers, target.sms * count),
        ("threads on one SM", count * threads, target.max_threads_per_sm),
        ("registers on one SM", count * threads * built.resources.registers, target.regs_per_sm),
        ("bytes of shared memory on one SM", count * shared, target.smem_per_sm),
    )
    for what, used, allowed in limits:
        if used > allowed:
            raise refusal.unsafe(
                "AMK402",
                f"{built.schedule.name}: {used:,} {what}, {target.name} has {allowed:,}",
                shown(f"{launch.workers} workers, {count} on each of {target.sms} SMs, {threads} threads each"),
            )
