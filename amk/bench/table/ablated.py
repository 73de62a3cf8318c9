"""Times of ablated kernels beside the kernel they are made from: the only place that launches them.

They are not admitted. All of them use the buffers, the stream and the launch shape of one engine, whose own kernel was
admitted. They are loaded apart from it, under another symbol. What they leave in the buffers is meaningless; positions
and counters stay right, as every signal is still made, and the engine's own kernel must give the same logits afterwards
as before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from amk.bench.table.ablation import SYMBOL, Ablation, Parts, ablated_source, named
from amk.bench.table.decode_bench import OWN, needed_bytes, own
from amk.bench.table.row import Key
from amk.bench.tools.accuracy import relative_error, within_tolerance
from amk.bench.tools.ceiling import read_ceiling
from amk.bench.tools.subject import Subject
from amk.bench.tools.timing import Contestant, take_turns
from amk.engine.backends.cuda_engine import CudaEngine
from amk.lowering.compile import compile_cuda
from amk.lowering.launch import CooperativeLaunch, Module
from amk.processes import process_pool
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule


def ablated_cubins(schedule: Schedule, part_sets: Sequence[Parts], processes: int) -> dict[str, bytes]:
    """Machine code by `named` parts, compiled by so many processes, from the compiler's cache where it is there."""
    names = [named(parts) for parts in part_sets]
    with process_pool(min(processes, max(1, len(names)))) as pool:
        return dict(zip(names, pool.map(_cubin, [schedule] * len(names), part_sets), strict=True))


def _cubin(schedule: Schedule, parts: Parts) -> bytes:
    return compile_cuda(ablated_source(schedule, parts), schedule.target.arch).cubin


@dataclass
class AblatedKernel:
    """An ablated kernel on the buffers of `engine`. AMK402, AMK403 or AMK603 if it cannot be loaded there."""

    engine: CudaEngine
    name: str
    cubin: bytes

    def __post_init__(self) -> None:
        shape = self.engine.schedule.launch
        self.module = Module(self.engine.device, self.cubin)
        kernel = self.module.kernel(SYMBOL, dynamic_smem=shape.shared_bytes)
        self.launch = CooperativeLaunch(kernel, shape.workers, shape.warps * 32)

    def contestant(self, pos: int, tokens: int) -> Contestant:
        """As `decode_bench.own`."""
        engine = self.engine
        stream = torch.cuda.ExternalStream(int(engine.stream.handle))
        return Contestant(
            self.name, tokens, stream, lambda: self.launch(engine.argument(tokens), engine.stream.handle),
            lambda: engine.set_state(pos=pos, done=0), self.module.close, repeats=False,
        )  # fmt: skip


def ablate(subject: Subject, key: Key, cubins: dict[str, bytes]) -> Ablation:
    """The row of `key`: correctness of the kernel itself, then all kernels in turn.

    A kernel that cannot be loaded, or whose waits do not end, is left out, with the reason.
    """
    subject.load_cache()
    token = 1000 % subject.schedule.model.vocab
    first = subject.logits(token, key.pos)
    reference = subject.torch_logits(token, key.pos, torch.float64)
    error = relative_error(first, reference)
    torch_error = relative_error(subject.torch_logits(token, key.pos, torch.bfloat16), reference)
    ceiling = read_ceiling(subject.engine.device)
    tried = {name: _entered(subject, key, name, cubin) for name, cubin in cubins.items()}
    entered = [contestant for contestant in tried.values() if isinstance(contestant, Contestant)]
    times = take_turns([own(subject, key.pos, key.tokens), *entered], key.steps)
    for contestant in entered:
        contestant.free()
    subject.engine.check()
    subject.load_cache()
    same = torch.equal(first, subject.logits(token, key.pos))
    return Ablation(
        key=key, layers=subject.schedule.model.layers, bytes=needed_bytes(subject.schedule, key.pos),
        l2_bytes=subject.schedule.target.l2_bytes, ceiling_gbps=ceiling,
        times={"-": times.pop(OWN)} | times, error=error, torch_error=torch_error,
        correct=same and within_tolerance(error, torch_error),
        left_out={name: why for name, why in tried.items() if isinstance(why, str)},
    )  # fmt: skip


def _entered(subject: Subject, key: Key, name: str, cubin: bytes) -> Contestant | str:
    """The contestant after a launch of it that ended by itself, else why there is none."""
    engine = subject.engine
    try:
        contestant = AblatedKernel(engine, name, cubin).contestant(key.pos, key.tokens)
        contestant.prepare()
        contestant.run()
        engine.stream.synchronise()
        engine.check()
    except AmkError as error:
        reason = error.diagnostics[0].message
        engine.reset()
        print(f"without {name} is left out: {reason}", file=sys.stderr, flush=True)
        return reason
    return contestant
