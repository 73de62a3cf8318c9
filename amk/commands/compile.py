"""`amk compile`: a SAFE schedule to machine code, on a machine that needs neither a GPU nor a driver."""

from __future__ import annotations

import argparse
from pathlib import Path

from amk.commands.output import add_format, print_json, print_table, write_file
from amk.commands.planning import add_plan_arguments, given_or_planned
from amk.commands.schedule_file import places_in
from amk.engine.admission.admission import admit
from amk.lowering.kernel import BuiltKernel, build
from amk.lowering.readback import count_kinds
from amk.planner.settings import PRESETS
from amk.schedule_ir.codec import schedule_hash


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", nargs="?", metavar="FILE", help="a schedule; or --model and --gpu to plan one")
    add_plan_arguments(parser, required=False)
    parser.add_argument("--plan", choices=tuple(PRESETS), default="fast", help="which plan (default: fast)")
    parser.add_argument("-o", "--output", metavar="X.cubin", help="write the machine code, a bare ELF file")
    parser.add_argument("--emit-cuda", metavar="FILE", help="write the generated CUDA C++")
    parser.add_argument("--ptx", metavar="FILE", help="write the PTX")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    schedule = given_or_planned(arguments)
    with places_in(arguments.schedule):
        admit(schedule)
        built = build(schedule)
    _write(arguments.output, built.compiled.cubin)
    _write(arguments.emit_cuda, built.source.encode())
    _write(arguments.ptx, built.compiled.ptx.encode())
    if arguments.format == "json":
        print_json(summary(built))
    else:
        print_table(("what", "used", "budget"), _rows(built))
    return 0


def _write(path: str | None, content: bytes) -> None:
    if path is not None:
        write_file(Path(path), content)


def summary(kernel: BuiltKernel) -> dict[str, object]:
    """What was compiled and what it uses."""
    launch, used = kernel.schedule.launch, kernel.resources
    return {
        "schedule": kernel.schedule.name,
        "schedule_sha256": schedule_hash(kernel.schedule),
        "arch": kernel.compiled.arch,
        "workers": launch.workers,
        "threads": launch.warps * 32,
        "registers": {"used": used.registers, "budget": launch.registers},
        "spill_bytes": {"used": used.spill_stores + used.spill_loads, "budget": 0},
        "shared_bytes": {
            "static": used.static_smem,
            "dynamic": launch.shared_bytes,
            "budget": kernel.schedule.target.smem_per_block,
        },
        "cubin_bytes": len(kernel.compiled.cubin),
        "synchronisation": {str(kind): n for kind, n in count_kinds(list(kernel.synchronisation)).items()},
    }


def _rows(kernel: BuiltKernel) -> list[tuple[str, str, str]]:
    launch, target, used = kernel.schedule.launch, kernel.schedule.target, kernel.resources
    shared = f"{used.static_smem} + {launch.shared_bytes}"
    return [
        ("schedule", kernel.schedule.name, ""),
        ("architecture", kernel.compiled.arch, ""),
        ("workers x threads", f"{launch.workers} x {launch.warps * 32}", f"{target.sms * launch.ctas_per_sm} workers"),
        ("registers a thread", str(used.registers), str(launch.registers)),
        ("spilled bytes", str(used.spill_stores + used.spill_loads), "0"),
        ("shared bytes a worker", f"{shared} = {kernel.shared_bytes}", str(target.smem_per_block)),
    ]
