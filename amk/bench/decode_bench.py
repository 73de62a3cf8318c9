"""One model on one GPU: correctness against fp64, reproducibility, and time beside torch in the same process."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch

from amk.bench.device_packing import packed_weights
from amk.bench.torch_model import TorchDecoder, TorchWeights
from amk.engine.cuda_engine import CudaEngine
from amk.lowering.launch import Device
from amk.planner.storage import packed_bytes
from amk.schedule_ir.rope import rope_frequencies
from amk.schedule_ir.schedule import Schedule


@dataclass(frozen=True)
class Row:
    """One position. Times in ms per token: median, 10th and 90th percentile; errors are relative L2 norms of logits."""

    model: str
    pos: int
    ms: float
    p10: float
    p90: float
    graph_ms: float
    bytes: int
    tbps: float
    error: float
    torch_error: float
    kl: float
    argmax_agrees: bool
    reproducible: bool

    @property
    def correct(self) -> bool:
        return self.reproducible and self.error <= 1.1 * self.torch_error

    def line(self) -> str:
        return (
            f"{self.model:<14} pos {self.pos:>6}  {self.ms:7.4f} ms [{self.p10:.4f}, {self.p90:.4f}]  "
            f"torch graph {self.graph_ms:7.4f} ({self.graph_ms / self.ms:4.2f}x)  {self.tbps:5.2f} TB/s  "
            f"err {self.error:.2e} torch {self.torch_error:.2e} kl {self.kl:.1e} "
            f"argmax {'=' if self.argmax_agrees else '!'}  bitwise {'=' if self.reproducible else 'DIFFERS'}  "
            f"{'ok' if self.correct else 'WRONG'}"
        )

    def record(self) -> dict[str, object]:
        return asdict(self) | {"correct": self.correct}


@dataclass
class Subject:
    """A loaded engine with the torch model on the same weights and the same random cache."""

    schedule: Schedule
    engine: CudaEngine
    weights: TorchWeights
    k_cache: torch.Tensor
    v_cache: torch.Tensor

    @classmethod
    def random(cls, schedule: Schedule, image: bytes | str, seed: int, weights: TorchWeights | None = None) -> Subject:
        model, kv = schedule.model, schedule.kv
        weights = weights or TorchWeights.random(model, seed)
        engine = CudaEngine(schedule, Device.open(), image)
        copy_to(engine, "weights", packed_weights(schedule, weights))
        copy_to(engine, "embedding", weights.embedding)
        copy_to(engine, "norm", weights.norm)
        for name, tensor in (("qkv_bias", weights.bias), ("q_norm", weights.q_norm), ("k_norm", weights.k_norm)):
            if tensor is not None:
                copy_to(engine, name, tensor)
        angles = np.outer(np.arange(kv.context), rope_frequencies(model))
        engine.upload("rope", np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
        shape = (model.layers, model.kv_heads, kv.context, model.head_dim)
        gen = torch.Generator("cuda").manual_seed(seed + 1)
        caches = [torch.randn(shape, generator=gen, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        engine.reset()
        return cls(schedule, engine, weights, *caches)

    def load_cache(self) -> None:
        copy_to(self.engine, "k_cache", self.k_cache)
        copy_to(self.engine, "v_cache", self.v_cache)

    def logits(self, token: int, pos: int) -> torch.Tensor:
        """One token of the megakernel, scratch poisoned before."""
        self.engine.poison()
        self.engine.upload("request", np.array([0, -1, -1, -1, -1], np.int32))
        self.engine.set_state(token=token, pos=pos, done=0)
        self.engine.step(1)
        return torch.from_numpy(self.engine.read("logits", np.float32, self.schedule.model.vocab)).cuda()

    def torch_logits(self, token: int, pos: int, dtype: torch.dtype) -> torch.Tensor:
        decoder = TorchDecoder(self.weights, self.k_cache, self.v_cache, dtype)
        saved = self.k_cache[:, :, pos].clone(), self.v_cache[:, :, pos].clone()
        out = decoder.step(torch.tensor([token], device="cuda"), pos, decoder.rope(pos))
        self.k_cache[:, :, pos], self.v_cache[:, :, pos] = saved
        return out


def copy_to(engine: CudaEngine, name: str, tensor: torch.Tensor) -> None:
    """Device to device copy into a global buffer."""
    source = tensor.contiguous()
    torch.cuda.synchronize()
    size = source.numel() * source.element_size()
    engine.device.driver.call("cuMemcpyDtoD", engine.buffers[name].address, source.data_ptr(), size)


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value.double() - reference).norm() / reference.norm())


def kl_divergence(value: torch.Tensor, reference: torch.Tensor) -> float:
    """KL(reference || value) of the softmax distributions, in nats."""
    p, q = reference.double().log_softmax(-1), value.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum())


def bench_position(subject: Subject, pos: int, steps: int = 50, tokens: int = 4) -> Row:
    """Correctness at `pos`, then interleaved timing of the megakernel and of torch's operations in a CUDA graph."""
    subject.load_cache()
    token = 1000 % subject.schedule.model.vocab
    first, second = subject.logits(token, pos), subject.logits(token, pos)
    reference = subject.torch_logits(token, pos, torch.float64)
    own_bf16 = subject.torch_logits(token, pos, torch.bfloat16)
    mine, theirs = interleaved(subject, pos, steps, tokens)
    again = subject.logits(token, pos)
    moved = moved_bytes(subject.schedule, pos)
    ms = statistics.median(mine)
    return Row(
        model=subject.schedule.model.name, pos=pos, ms=ms, p10=float(np.percentile(mine, 10)),
        p90=float(np.percentile(mine, 90)), graph_ms=statistics.median(theirs), bytes=moved, tbps=moved / ms / 1e9,
        error=relative_error(first, reference), torch_error=relative_error(own_bf16, reference),
        kl=kl_divergence(first, reference), argmax_agrees=bool(first.argmax() == reference.argmax()),
        reproducible=bool(torch.equal(first, second) and torch.equal(first, again)),
    )  # fmt: skip


def moved_bytes(schedule: Schedule, pos: int) -> int:
    """Bytes a token must read: packed weights, and the cache up to `pos`."""
    model = schedule.model
    cache = 2 * model.layers * model.kv_heads * (pos + 1) * model.head_dim * 2
    return packed_bytes(model, schedule.streams[0].chunk_k) + cache


def interleaved(subject: Subject, pos: int, steps: int, tokens: int) -> tuple[list[float], list[float]]:
    """ms per token of `steps` launches of `tokens` tokens each from `pos`, and of as many graph replays, in turn."""
    engine = subject.engine
    room = subject.schedule.kv.context - pos
    tokens = max(1, min(tokens, room))
    stream = torch.cuda.ExternalStream(int(engine.stream.handle))
    replay = torch_graph(subject, pos)
    mine, theirs = [], []
    for i in range(steps + 5):
        engine.set_state(pos=pos, done=0)
        ours = timed(stream, lambda: engine.enqueue(tokens)) / tokens
        other = timed(torch.cuda.current_stream(), replay)
        if i >= 5:
            mine.append(ours)
            theirs.append(other)
    engine.check()
    return mine, theirs


def timed(stream: torch.cuda.Stream, work: Callable[[], None]) -> float:
    """Milliseconds of device time."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end))


def torch_graph(subject: Subject, pos: int) -> Callable[[], None]:
    """Torch's bf16 operations for one token at `pos`, argmax included, captured in a CUDA graph."""
    decoder = TorchDecoder(subject.weights, subject.k_cache.clone(), subject.v_cache.clone(), torch.bfloat16)
    token, rotation = torch.tensor([1], device="cuda"), decoder.rope(pos)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            token.copy_(decoder.step(token, pos, rotation).argmax(-1, keepdim=True))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        token.copy_(decoder.step(token, pos, rotation).argmax(-1, keepdim=True))
    return graph.replay
