"""A schedule loaded on the GPU beside torch's model: same weights, same cache, same token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from amk.bench.tools.device_packing import packed_weights, row_scales, streamed
from amk.bench.tools.torch_model import Places, TorchDecoder, TorchWeights, alone, as_kept
from amk.engine.admission.admission import AdmittedKernel
from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.backends.request import first_state
from amk.lowering.launch import Device
from amk.models.rope import rope_frequencies
from amk.prefill.views import view
from amk.schedule_ir.ops.begin import pos_register
from amk.schedule_ir.ops.select import REQUEST, request_words
from amk.schedule_ir.schedule import Schedule


@dataclass
class Subject:
    """engine and `exact` hold the same weights, `weights` has them in bf16: one object unless the stream is quantised.
    original: what they were quantised from.

    The caches, bf16 [layers, batch * kv_heads, context, head_dim], are torch's; they hold numbers that the engine's can
    hold.
    """

    schedule: Schedule
    engine: CudaEngine
    weights: TorchWeights
    k_cache: Tensor
    v_cache: Tensor
    exact: TorchWeights
    original: TorchWeights

    @classmethod
    def random(
        cls, kernel: AdmittedKernel, seed: int, weights: TorchWeights | None = None,
        stream: tuple[TorchWeights, TorchWeights] | None = None, packed: Tensor | None = None,
    ) -> Subject:  # fmt: skip
        """Random weights (or the given ones) and a random cache, as if `context` tokens had been read.

        stream: what `streamed` makes of the weights, packed: what `packed_weights` does, where they are known.
        """
        schedule = kernel.schedule
        weights = weights or TorchWeights.random(schedule.model, seed)
        torch.cuda.empty_cache()  # the engine's buffers are not torch's
        engine = CudaEngine(kernel, Device.open())
        load_constants(engine, weights, packed)
        original = weights
        exact, weights = stream or streamed(schedule, weights)
        model = schedule.model
        shape = (model.layers, schedule.caches, schedule.kv.context, model.head_dim)
        gen = torch.Generator("cuda").manual_seed(seed + 1)
        caches = [torch.randn(shape, generator=gen, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        caches = [as_kept(cache, schedule.kv.dtype) for cache in caches]
        engine.reset()
        no_prompt(engine)
        return cls(schedule, engine, weights, caches[0], caches[1], exact, original)

    def load_cache(self) -> None:
        """Give the engine torch's cache."""
        for name, cache in (("k_cache", self.k_cache), ("v_cache", self.v_cache)):
            copy_to(self.engine, name, cache.to(torch.float8_e4m3fn) if self.schedule.kv.dtype == "fp8" else cache)

    def tokens(self, token: int) -> Tensor:
        """A token for each sequence of the batch, int64 [batch] on the GPU: `token` for the first, others apart."""
        vocab = self.schedule.model.vocab
        return torch.tensor([(token + 7 * s) % vocab for s in range(self.schedule.batch)], device="cuda")

    def start(self, token: int, pos: int) -> None:
        """Stand at `pos` with `tokens(token)`; what follows is chosen by the kernel."""
        no_prompt(self.engine)
        self.place(token, [pos] * self.schedule.batch)

    def place(self, token: int, positions: Sequence[int]) -> None:
        """The same with each sequence at its own position, which are equal unless the schedule is live."""
        words = first_state([[t] for t in self.tokens(token).tolist()]) | {"pos": positions[0]}
        further = {pos_register(s): pos for s, pos in enumerate(positions)} if self.schedule.live else {}
        self.engine.set_state(**words | further)

    def logits(self, token: int, pos: int) -> Tensor:
        """One token of the kernel, scratch poisoned before: f32 [vocab], [batch, vocab] in a batch, on the GPU."""
        self.engine.poison()
        self.start(token, pos)
        self.engine.step(1)
        batch, vocab = self.schedule.batch, self.schedule.model.vocab
        return alone(torch.from_numpy(self.engine.read("logits", np.float32, batch * vocab)).cuda().view(batch, vocab))

    def source(self, dtype: torch.dtype) -> TorchWeights:
        """The weights that a forward in `dtype` starts from."""
        return self.weights if dtype == torch.bfloat16 else self.exact

    def torch_logits(self, token: int, pos: int, dtype: torch.dtype) -> Tensor:
        """The same token by torch in `dtype`; the cache is left as it was."""
        decoder = TorchDecoder(self.source(dtype), self.k_cache, self.v_cache, dtype, self.schedule.kv.dtype)
        with self.preserved(pos):
            return decoder.step(self.tokens(token), pos, decoder.rope(pos))

    def torch_logits_at(self, tokens: Tensor, positions: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """[positions, vocab] of a token each ([positions], int64), for a batch of one."""
        kept = self.schedule.kv.dtype
        return Places(self.source(dtype), self.k_cache, self.v_cache, dtype, kept, positions).logits(tokens)

    @contextmanager
    def preserved(self, pos: int) -> Iterator[None]:
        """Torch's cache row `pos` is restored afterwards: a step appends to it."""
        saved = self.k_cache[:, :, pos].clone(), self.v_cache[:, :, pos].clone()
        try:
            yield
        finally:
            self.k_cache[:, :, pos], self.v_cache[:, :, pos] = saved

    def free(self) -> None:
        self.engine.free()


def load_constants(engine: CudaEngine, weights: TorchWeights, packed: Tensor | None = None) -> None:
    """Every constant buffer that the model defines; packed: its weights, where they are packed already."""
    schedule = engine.schedule
    load_weights(engine, weights, packed)
    copy_to(engine, "embedding", weights.embedding)
    copy_to(engine, "norm", weights.norm)
    for name, tensor in (("qkv_bias", weights.bias), ("q_norm", weights.q_norm), ("k_norm", weights.k_norm)):
        if tensor is not None:
            copy_to(engine, name, tensor)
    angles = np.outer(np.arange(schedule.kv.context), rope_frequencies(schedule.model))
    engine.upload("rope", np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))


def load_weights(engine: CudaEngine, weights: TorchWeights, packed: Tensor | None = None) -> None:
    """The packed weights, and the scales that stand apart from them."""
    if packed is None:
        packed_weights(engine.schedule, weights, into=view(engine, engine.schedule.streams[0].source))
        torch.cuda.synchronize()
    else:
        copy_to(engine, "weights", packed)
    for name, tensor in row_scales(engine.schedule, weights).items():
        copy_to(engine, name, tensor)


def no_prompt(engine: CudaEngine) -> None:
    """A request of length 0 without end-of-text tokens: every token is chosen by the kernel and fed back."""
    words = np.full(request_words(engine.schedule.batch), -1, np.int32)
    words[0], words[len(REQUEST) :] = 0, 0
    engine.upload("request", words)


def copy_to(engine: CudaEngine, name: str, tensor: Tensor) -> None:
    """Device to device copy into a global buffer."""
    source = tensor.contiguous()
    torch.cuda.synchronize()
    size = source.numel() * source.element_size()
    if size > engine.buffers[name].nbytes:
        raise ValueError(f"{name} holds {engine.buffers[name].nbytes} bytes, got {size}")
    engine.device.driver.call("cuMemcpyDtoD", engine.buffers[name].address, source.data_ptr(), size)
