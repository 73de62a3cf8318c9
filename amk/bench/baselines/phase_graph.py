"""Baseline `pdl-graph`: our own tiles as separate kernels in a CUDA graph with programmatic dependent launch.

Made from the measured schedule (`amk.lowering.phases`): the same rows, op bodies and packed weights, one kernel between
two hand-offs, all kernels of a launch's tokens in one graph. A kernel starts while the one before it runs and fills its
rings with weights before it waits for that one. Laid out for one, two and three kernels on an SM at a time; the fastest
counts.

Its kernels are not admitted: they run no schedule, and the order of the stream synchronises them. Their logits are
compared with the model's before anything is timed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from amk.bench.tools.accuracy import relative_error, within_tolerance
from amk.bench.tools.subject import Subject
from amk.bench.tools.timing import Contestant, WrongBaseline, timed
from amk.lowering.abi import member
from amk.lowering.compile import compile_cuda
from amk.lowering.device_memory import DeviceBuffer
from amk.lowering.emit_phases import PhaseSource, emit_phases
from amk.lowering.launch import Module, OverlappingLaunch
from amk.lowering.stream import Graph
from amk.schedule_ir.schedule import Schedule

BLOCKS = (1, 2, 3)
"""Kernels that an SM is to hold at a time."""

TRIALS = 20
"""Replays of each layout that decide which one is the baseline."""

NAME = "pdl-graph"
SHARED_WITH_ENGINE = ("k_cache", "v_cache")
"""State that both use: each writes its own row of the position before it reads it."""


def compiled_phases(schedule: Schedule, blocks: int) -> tuple[PhaseSource, bytes]:
    """Source and machine code. Kernels that would spill are laid out for fewer at a time."""
    each: tuple[int, ...] | int = blocks
    while True:
        source = emit_phases(schedule, each)
        compiled = compile_cuda(source.source, schedule.target.arch)
        counts = [kernel.blocks_per_sm for kernel in source.kernels]
        spilled = [compiled.resources[kernel.symbol].spill_stores > 0 for kernel in source.kernels]
        if not any(s and n > 1 for s, n in zip(spilled, counts, strict=True)):
            return source, compiled.cubin
        each = tuple(max(1, n - s) for s, n in zip(spilled, counts, strict=True))


class PhaseGraph:
    """The kernels on the GPU, with hand-offs and state of their own; constants and cache are the subject's."""

    def __init__(self, subject: Subject, source: PhaseSource, cubin: bytes, tokens: int) -> None:
        engine = subject.engine
        self.engine, self.source, self.vocab = engine, source, subject.schedule.model.vocab
        self.buffers = {
            b.name: DeviceBuffer(engine.device, -(-b.bytes // 256) * 256)
            for b in source.buffers
            if b.role != "constant" and b.name not in SHARED_WITH_ENGINE
        }
        self.words = tuple(engine.state())
        self.module = Module(engine.device, cubin)
        launch = subject.schedule.launch
        self.kernels = []
        for kernel in source.kernels:
            loaded = self.module.kernel(kernel.symbol, dynamic_smem=kernel.shared_bytes)
            loaded.keep_largest_shared_memory()
            self.kernels.append(OverlappingLaunch(loaded, launch.workers, launch.warps * 32))
        shared = {name: buffer.address for name, buffer in engine.buffers.items()}
        own = {name: buffer.address for name, buffer in self.buffers.items()}
        values = {member(b.name): (shared | own)[b.name] for b in source.buffers}
        self.values = values | {
            "counters": engine.counters.address, "watchdog_log": engine.log.address,
            "abort_word": engine.abort.address, "stall_ns": engine.stall_ns, "tokens": 1, "trace": 0,
        }  # fmt: skip
        self.arguments = [source.argument(self.values, layer, n) for n in range(tokens) for _, layer in source.launches]
        self.graph = Graph(engine.stream, lambda stream: self.enqueue(tokens, stream))

    def enqueue(self, tokens: int, stream: object) -> None:
        """The kernels of `tokens` tokens, one after the other."""
        order = [kernel for kernel, _ in self.source.launches] * tokens
        for kernel, argument in zip(order, self.arguments, strict=False):
            self.kernels[kernel](argument, stream)

    def place(self, pos: int, token: int) -> None:
        """Where the next token stands."""
        words = {"token": token, "pos": pos}
        self.buffers["state"].upload(np.array([words.get(name, 0) for name in self.words], np.int32))

    def replay(self) -> None:
        self.graph.replay(self.engine.stream)

    def logits(self, token: int, pos: int) -> torch.Tensor:
        """Of one token, hand-offs filled with NaN before: f32 [vocab] on the GPU."""
        for buffer in self.source.buffers:
            if buffer.role == "scratch":
                self.buffers[buffer.name].fill(0xFF, self.engine.stream.handle)
        self.engine.stream.synchronise()
        self.place(pos, token)
        self.enqueue(1, self.engine.stream.handle)
        self.engine.stream.synchronise()
        self.engine.check()
        return torch.from_numpy(self.buffers["logits"].download(np.float32, self.vocab)).cuda()

    def tokens(self, count: int) -> list[int]:
        """What the last launch chose."""
        return [int(token) for token in self.buffers["output"].download(np.int32, count)]

    def free(self) -> None:
        self.graph.close()
        self.module.close()
        for buffer in self.buffers.values():
            buffer.free()


def pdl_graph(
    subject: Subject, pos: int, tokens: int, token: int, torch_error: float, reference: torch.Tensor
) -> Contestant:
    """The fastest of the layouts. WrongBaseline if a layout's logits are not those of the model."""
    stream = torch.cuda.ExternalStream(int(subject.engine.stream.handle))
    graphs = [PhaseGraph(subject, *compiled_phases(subject.schedule, blocks), tokens) for blocks in BLOCKS]
    for graph in graphs:
        first, second = graph.logits(token, pos), graph.logits(token, pos)
        error = relative_error(first, reference)
        if not (within_tolerance(error, torch_error) and torch.equal(first, second)):
            raise WrongBaseline(f"the graph's logits have error {error:.2e}, torch's bf16 forward {torch_error:.2e}")
    best = _fastest(graphs, stream, pos, token)
    for graph in graphs:
        if graph is not best:
            graph.free()
    return Contestant(NAME, tokens, stream, best.replay, lambda: best.place(pos, token), best.free, repeats=False)


def _fastest(graphs: Sequence[PhaseGraph], stream: torch.cuda.Stream, pos: int, token: int) -> PhaseGraph:
    def median(graph: PhaseGraph) -> float:
        times = []
        for _ in range(TRIALS):
            graph.place(pos, token)
            times.append(timed(stream, graph.replay))
        return sorted(times)[TRIALS // 2]

    return min(graphs, key=median)
