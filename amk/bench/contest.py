"""Plans of one model against the default one, in one process on one GPU: `python -m amk.bench.contest --help`.

Every contestant is verified, compiled and certified by a process of its own; its logits are compared with fp64 and with
its own second run; then all take turns (`timing.take_turns`). All of them get the same weights, cache and token.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from amk.bench.table.decode_bench import needed_bytes, own
from amk.bench.tools.accuracy import relative_error, within_tolerance
from amk.bench.tools.ceiling import read_ceiling
from amk.bench.tools.contestants import parse, schedule_of
from amk.bench.tools.device_packing import packing_key, streamed
from amk.bench.tools.subject import Subject
from amk.bench.tools.times import Times
from amk.bench.tools.timing import take_turns
from amk.bench.tools.torch_model import TorchWeights
from amk.engine.admission.admission import AdmittedKernel, admit, admitted
from amk.lowering.kernel import build
from amk.lowering.launch import Device
from amk.models.matrices import MATRICES, matrix
from amk.prefill.views import view
from amk.processes import process_pool
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule

SEED = 20
BF16 = 2
PASSING = 24
"""Bytes an element of the largest matrix: six arrays of f32 while it is quantised, three of f64 in the reference."""

Entrant = tuple[str, AdmittedKernel]
"""Changes of the default plan, and the kernel."""


@dataclass(frozen=True)
class Result:
    """One plan at one position. ratio: its time over that of the first contestant."""

    changes: str
    pos: int
    times: Times
    ratio: float
    error: float
    torch_error: float
    correct: bool
    registers: int


def kernel_of(arguments: argparse.Namespace, changes: str) -> AdmittedKernel | str:
    """The kernel, or why there is none."""
    try:
        schedule = schedule_of(arguments, changes)
        admit(schedule)
        return admitted(schedule, build(schedule).compiled.cubin)
    except AmkError as error:
        return str(error)


def contest(
    arguments: argparse.Namespace, base: Entrant, others: Sequence[Entrant]
) -> tuple[list[Result], Sequence[Entrant]]:
    """One contest per position of the base and as many others as GPU memory holds, but one; and those left over.

    Matrices are drawn when they are needed, so that the memory is the contestants'.
    """
    weights = TorchWeights.random(base[1].schedule.model, SEED, drawn=True)
    stream = streamed(base[1].schedule, weights)
    subjects: list[Subject] = []
    for _, kernel in (base, *others):
        torch.cuda.empty_cache()
        if len(subjects) > 1 and torch.cuda.mem_get_info()[0] < needed_memory(kernel.schedule):
            break
        subjects.append(Subject.random(kernel, SEED, weights, stream, _packed_already(kernel.schedule, subjects)))
    entered, left = (base, *others)[: len(subjects)], others[len(subjects) - 1 :]
    found: list[Result] = []
    for pos in arguments.positions:
        checked = _checked(subjects, pos)
        runners = [replace(own(s, pos, arguments.tokens), name=str(i)) for i, s in enumerate(subjects)]
        times = take_turns(runners, arguments.steps)
        for i, (changes, kernel) in enumerate(entered):
            subjects[i].engine.check()
            used = kernel.resources
            ratio = times[str(i)].ms / times["0"].ms
            found.append(Result(changes, pos, times[str(i)], ratio, *checked[i], used.registers if used else 0))
    for subject in subjects:
        subject.free()
    del subjects, weights, stream
    gc.collect()
    torch.cuda.empty_cache()
    return found, left


def needed_memory(schedule: Schedule) -> int:
    """Bytes that one more contestant takes at most, with what packing and checking it take for a while."""
    buffers = sum(buffer.bytes for buffer in schedule.buffers if buffer.space == "global")
    model = schedule.model
    caches = 2 * BF16 * model.layers * schedule.caches * schedule.kv.context * model.head_dim
    largest = max(shape.rows * shape.k for shape in (matrix(model, name) for name in MATRICES))
    return buffers + caches + PASSING * largest


def _packed_already(schedule: Schedule, subjects: Sequence[Subject]) -> Tensor | None:
    """The packed weights of a contestant that has just those."""
    key = packing_key(schedule)
    same = next((subject for subject in subjects if packing_key(subject.schedule) == key), None)
    return None if same is None else view(same.engine, same.schedule.streams[0].source)


def _checked(subjects: list[Subject], pos: int) -> list[tuple[float, float, bool]]:
    """(error, torch's own in bf16, whether it is small enough and two runs are equal) of each."""
    token = 1000 % subjects[0].schedule.model.vocab
    reference = subjects[0].torch_logits(token, pos, torch.float64)
    torch_error = relative_error(subjects[0].torch_logits(token, pos, torch.bfloat16), reference)
    found = []
    for subject in subjects:
        subject.load_cache()
        first, second = subject.logits(token, pos), subject.logits(token, pos)
        error = relative_error(first, reference)
        found.append((error, torch_error, torch.equal(first, second) and within_tolerance(error, torch_error)))
    return found


def table(results: Sequence[Result]) -> str:
    lines = [f"{'ms':>8} {'p10':>8} {'p90':>8} {'ratio':>7} {'error':>9}  ok  regs    pos  changes"]
    for r in results:
        times = f"{r.times.ms:8.4f} {r.times.p10:8.4f} {r.times.p90:8.4f}"
        right = "yes" if r.correct else "NO "
        lines.append(
            f"{times} {r.ratio:7.4f} {r.error:9.2e} {right} {r.registers:4d} {r.pos:7d}  {r.changes or 'default'}"
        )
    return "\n".join(lines)


def compared(arguments: argparse.Namespace, kernels: Sequence[AdmittedKernel | str]) -> int:
    """Time kernels of the base and of all changes in turn, print and record the results: 0 if all are right, else 1.
    Without a kernel of the base, or without any other, there is no contest."""
    every = list(zip([arguments.base, *arguments.changes], kernels, strict=True))
    for changes, kernel in every:
        if isinstance(kernel, str):
            print(f"left out: {changes or 'default'}: {kernel}", flush=True)
    entered = [(changes, kernel) for changes, kernel in every if isinstance(kernel, AdmittedKernel)]
    if isinstance(kernels[0], str) or len(entered) < 2:
        return 1
    base, *others = entered
    ceiling, schedule = read_ceiling(Device.open()), base[1].schedule
    least = [(needed_bytes(schedule, pos) - schedule.target.l2_bytes) / ceiling / 1e6 for pos in arguments.positions]
    print(f"read ceiling {ceiling:.0f} GB/s; floor {', '.join(f'{ms:.4f}' for ms in least)} ms", flush=True)
    left: Sequence[Entrant] = others
    found: list[Result] = []
    while left:
        results, left = contest(arguments, base, left)
        print(table(results), flush=True)
        found += results
        if arguments.record:
            arguments.record.write_text(json.dumps([asdict(r) for r in found], indent=1), encoding="utf-8")
    return 0 if all(r.correct for r in found) else 1


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv, __doc__)
    every = [arguments.base, *arguments.changes]
    with process_pool(arguments.processes) as pool:
        kernels = list(pool.map(kernel_of, [arguments] * len(every), every))
    return compared(arguments, kernels)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
