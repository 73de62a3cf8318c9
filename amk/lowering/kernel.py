"""A schedule's kernel: its source, its machine code, and the proof that it stays within the schedule's budget.

The validator decides co-residency from what the schedule says about registers and shared memory; here the compiled code
is held to those words. Without this check a kernel that spills or grows would still be launched under a verdict that
was given for another one. What may be launched is bound here: schedule -> text -> PTX -> cubin, by hash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from amk.lowering import refusal
from amk.lowering.bound import code_hash, is_noted, note
from amk.lowering.compile import Compiled, compile_cuda, compiler_build
from amk.lowering.cubin import Budget, Resources, check_budget
from amk.lowering.emit import KERNEL, emit
from amk.lowering.operands import check_operands
from amk.lowering.readback import Instruction, read_ptx
from amk.lowering.roundings import check_roundings
from amk.lowering.skeleton import check_synchronisation
from amk.lowering.stamp import stamped
from amk.lowering.tables import check_arrays
from amk.report.diagnostic import AmkError, Exit, because, shown
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.trace import all_sites
from amk.validator.static.outside import check_outside
from amk.validator.static.resources import CompiledResources, check_resources

NO_COMPILER = "AMK605"
RELEASES = ("13.0", "13.1", "13.2", "13.3")
"""Of NVRTC, with which default plans of an H200 were read back."""
_RELEASE = re.compile(r"^// Cuda compilation tools, release (\d+\.\d+)", re.MULTILINE)


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


def build(
    schedule: Schedule, *, trace: bool = False, cache_directory: Path | None = None, use_cache: bool = True
) -> BuiltKernel:
    """Emit and compile `schedule` for its target. trace: with the marks of `emit`.

    Raises AMK403 for registers or spills over budget, AMK401 for shared memory of a block, AMK402 when the workers of
    one SM do not fit it together, AMK607 and AMK609 if the PTX does not synchronise as the schedule says, AMK610 if
    it leaves a rounding open, AMK601 for an architecture that cannot be compiled for, AMK605 without a compiler.
    """
    if found := check_outside(schedule):
        raise AmkError(found, Exit.UNKNOWN)
    if schedule.pools:
        raise refusal.unsupported("AMK601", "no code is generated for taking from a pool")
    if _codes_in_parts(schedule):
        raise refusal.unsupported("AMK601", "no code is generated for one vector's product of codes in parts")
    source, arch = stamped(emit(schedule, trace=trace), schedule), schedule.target.arch
    compiled = compile_cuda(source, arch, cache_directory=cache_directory, use_cache=use_cache)
    built = BuiltKernel(schedule, source, compiled, read_back(schedule, compiled.ptx))
    check_budget(KERNEL, built.resources, schedule.launch.shared_bytes, budget_of(schedule))
    check_compiled(built)
    note(schedule_hash(schedule), compiled.cubin, compiled.ptx)
    return built


def read_back(schedule: Schedule, ptx: str) -> tuple[Instruction, ...]:
    """What the PTX does to synchronise. AMK607 if it is not what the schedule asks for, AMK609 if operands are not,
    AMK610 if a rounding is left open."""
    try:
        return _checked(schedule, ptx)
    except AmkError as error:
        if (explained := _with_compiler(error, ptx)) is not None:
            raise explained from error
        raise


def _with_compiler(error: AmkError, ptx: str) -> AmkError | None:
    """The error with the compiler's name, where another one made the PTX than those that were tried."""
    release = _RELEASE.search(ptx)
    if release is None or release[1] in RELEASES:
        return None
    first, *others = error.diagnostics
    reason = because(f"NVRTC {release[1]} made this PTX; the read-back was tried with {RELEASES[0]} to {RELEASES[-1]}")
    return AmkError((replace(first, facts=(*first.facts, reason)), *others), error.exit_code)


def _checked(schedule: Schedule, ptx: str) -> tuple[Instruction, ...]:
    instructions = tuple(read_ptx(ptx).get(KERNEL, ()))
    found = check_synchronisation(schedule, instructions)
    if not is_noted(schedule_hash(schedule), ptx):
        check_arrays(schedule, ptx)
        check_operands(schedule, ptx, found)
        check_roundings(ptx)
    return instructions


def bind(schedule: Schedule, code: bytes | str) -> None:
    """Raise AMK608 unless `code` is what `build` makes of this schedule, plain or with trace marks.

    Property: the code (a cubin or PTX) equals, byte by byte, the one whose PTX this process read back.
    Assumptions: NVRTC makes a cubin and the PTX beside it of one program.
    Cost: none for what this process built; a look into the cache, or a compilation, for what came from elsewhere. What
    `build` raises if the schedule does not compile within its budget.
    """
    if is_bound(schedule, code):
        return
    output = build(schedule).compiled
    kind = "PTX" if isinstance(code, str) else "cubin"
    facts = (
        shown(f"given    {code_hash(code)}"),
        shown(f"compiled {code_hash(output.ptx if isinstance(code, str) else output.cubin)}"),
        shown(f"compiler {compiler_build()}"),
    )
    raise refusal.unsafe("AMK608", f"the {kind} is not what the compiler makes of this schedule", *facts)


def is_bound(schedule: Schedule, code: bytes | str) -> bool:
    """Whether `bind` takes the code."""
    digest = schedule_hash(schedule)
    if not is_noted(digest, code):
        build(schedule)
    return is_noted(digest, code) or _traced_is(schedule, code)


def _traced_is(schedule: Schedule, code: bytes | str) -> bool:
    try:
        output = build(schedule, trace=True).compiled
    except AmkError:  # over budget with its marks: then nobody was given such code
        return False
    return code in (output.cubin, output.ptx)


def _codes_in_parts(schedule: Schedule) -> bool:
    """Of one vector: of several, parts are multiplied whatever they are."""
    parts = any(isinstance(site.step.op, GemvOp) and site.step.op.k_parts > 1 for site in all_sites(schedule))
    return (
        schedule.vectors == 1
        and parts
        and any(chunk.format != "bf16" for stream in schedule.streams for chunk in stream.kinds("down"))
    )


def why_not_built(schedule: Schedule) -> str | None:
    """None if the schedule compiles within its budget, or if there is no compiler to ask; else the code and message."""
    try:
        build(schedule)
    except AmkError as error:
        first = error.diagnostics[0]
        return None if first.code == NO_COMPILER else f"{first.code}: {first.message}"
    return None


def check_compiled(kernel: BuiltKernel) -> None:
    """AMK401, 402 or 403 if the workers, with what the code really uses, are not all resident at once."""
    compiled = CompiledResources(kernel.resources.registers, kernel.resources.static_smem)
    if found := check_resources(kernel.schedule, compiled):
        raise AmkError(found, Exit.UNSAFE)
