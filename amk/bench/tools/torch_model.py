"""The model in plain torch operations: baseline, bf16 forward, and fp64 reference, all on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from amk.models.matrices import MATRICES, MatrixName, matrix
from amk.models.model_spec import ModelSpec
from amk.models.rope import rope_frequencies
from amk.schedule_ir.schedule import CacheDtype
from amk.weights.e4m3 import E4M3_MOST


class Drawn(Sequence[Tensor]):
    """Matrices that are made whenever they are asked for, always the same: of a model that does not fit in bf16."""

    def __init__(self, make: Callable[[int], Tensor], count: int) -> None:
        self._make, self._count = make, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, layer: int) -> Tensor:  # type: ignore[override]  # by number alone
        if not 0 <= layer < self._count:
            raise IndexError(layer)
        return self._make(layer)


@dataclass
class TorchWeights:
    """Weights in torch's layout, bf16 [rows, k]: matrices[name][layer]; gate rows stand before up rows."""

    model: ModelSpec
    embedding: Tensor
    norm: Tensor
    matrices: dict[str, Sequence[Tensor]]
    bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None

    @classmethod
    def random(cls, model: ModelSpec, seed: int, device: str = "cuda", drawn: bool | None = None) -> TorchWeights:
        """Normal weights of deviation k^-1/2 and norms around 1: activations keep the size of a trained model's.

        drawn: the layers' matrices are not kept, but made when they are asked for; None: if they are `too_large`.
        """
        drawn = device == "cuda" and too_large(model) if drawn is None else drawn
        gen = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int, scale: float, mean: float = 0.0, by: torch.Generator = gen) -> Tensor:
            return (torch.randn(*shape, generator=by, device=device, dtype=torch.float32) * scale + mean).bfloat16()

        def layer_of(name: MatrixName, layer: int) -> Tensor:
            shape, own = matrix(model, name), (seed * len(MATRICES) + MATRICES.index(name)) * model.layers + layer
            return normal(shape.rows, shape.k, scale=shape.k**-0.5, by=torch.Generator(device).manual_seed(2**32 + own))

        matrices: dict[str, Sequence[Tensor]] = {}
        for name in MATRICES:
            shape = matrix(model, name)
            if drawn and shape.per_layer:
                matrices[name] = Drawn(partial(layer_of, name), model.layers)
                continue
            count = model.layers if shape.per_layer else 1
            matrices[name] = [normal(shape.rows, shape.k, scale=shape.k**-0.5) for _ in range(count)]
        embedding = matrices["lm_head"][0] if model.tied_embeddings else normal(model.vocab, model.hidden, scale=1.0)
        if model.tied_embeddings:
            embedding *= model.hidden**0.5 / 8
        rows = matrix(model, "qkv").rows
        return cls(
            model,
            embedding,
            normal(2 * model.layers + 1, model.hidden, scale=0.1, mean=1.0).float(),
            matrices,
            bias=normal(model.layers, rows, scale=0.1).float() if model.qkv_bias else None,
            q_norm=normal(model.layers, model.head_dim, scale=0.1, mean=1.0).float() if model.qk_norm else None,
            k_norm=normal(model.layers, model.head_dim, scale=0.1, mean=1.0).float() if model.qk_norm else None,
        )


def too_large(model: ModelSpec) -> bool:
    """Whether the model's matrices in bf16 take more than half of the memory that the GPU has left."""
    shapes = [matrix(model, name) for name in MATRICES]
    size = sum(2 * shape.rows * shape.k * (model.layers if shape.per_layer else 1) for shape in shapes)
    return size > int(torch.cuda.mem_get_info()[0]) // 2


@dataclass
class TorchDecoder:
    """One decode step in `dtype`, keys and values kept as `cache_dtype`.

    caches: k and v, bf16 [layers, batch * kv_heads, context, head_dim], rows < pos filled; the kv heads of a sequence
    stand together.
    """

    weights: TorchWeights
    k_cache: Tensor
    v_cache: Tensor
    dtype: torch.dtype
    cache_dtype: CacheDtype = "bf16"

    def rope(self, pos: int) -> tuple[Tensor, Tensor]:
        angles = torch.tensor(rope_frequencies(self.weights.model) * pos, dtype=torch.float64)
        angles = torch.cat([angles, angles]).to(self.k_cache.device)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def step(self, token: Tensor, pos: int, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Logits [batch, vocab] of `token` ([batch], int64, on the device) at `pos`; [vocab] for one. Appends."""
        w, model = self.weights, self.weights.model
        h = F.embedding(token, w.embedding).to(self.dtype)
        for layer in range(model.layers):
            h = h + self.attention(self.norm(h, 2 * layer), layer, pos, rotation)
            gate, up = self.linear("gate_up", layer, self.norm(h, 2 * layer + 1)).chunk(2, dim=-1)
            h = h + self.linear("down", layer, F.silu(gate) * up)
        return alone(self.linear("lm_head", 0, self.norm(h, 2 * model.layers)))

    def linear(self, name: str, layer: int, x: Tensor) -> Tensor:
        return F.linear(x, self.weights.matrices[name][layer].to(self.dtype))

    def norm(self, h: Tensor, index: int) -> Tensor:
        return F.rms_norm(h, (h.shape[-1],), self.weights.norm[index].to(self.dtype), self.weights.model.rms_eps)

    def attention(self, x: Tensor, layer: int, pos: int, rotation: tuple[Tensor, Tensor]) -> Tensor:
        w, model = self.weights, self.weights.model
        qkv = self.linear("qkv", layer, x)
        if w.bias is not None:
            qkv = qkv + w.bias[layer].to(self.dtype)
        q, k, v = heads_of(qkv, model)
        if w.q_norm is not None and w.k_norm is not None:
            q = F.rms_norm(q, (model.head_dim,), w.q_norm[layer].to(self.dtype), model.rms_eps)
            k = F.rms_norm(k, (model.head_dim,), w.k_norm[layer].to(self.dtype), model.rms_eps)
        q, k = rotated(q, rotation), rotated(k, rotation)
        k = as_kept(k, self.cache_dtype).to(self.k_cache.dtype)
        v = as_kept(v, self.cache_dtype).to(self.v_cache.dtype)
        return self.linear("o", layer, self.attended(q, k, v, layer, pos))

    def attended(self, q: Tensor, k: Tensor, v: Tensor, layer: int, pos: int) -> Tensor:
        """Attention of every sequence over its cache, to which k and v, as the cache keeps them, are appended."""
        model = self.weights.model
        batch = len(q) // model.heads
        self.k_cache[layer, :, pos], self.v_cache[layer, :, pos] = k, v
        keys, values = (
            self.k_cache[layer, :, : pos + 1].to(self.dtype),
            self.v_cache[layer, :, : pos + 1].to(self.dtype),
        )
        out = F.scaled_dot_product_attention(
            q.view(batch, model.heads, 1, model.head_dim),
            keys.view(batch, model.kv_heads, -1, model.head_dim),
            values.view(batch, model.kv_heads, -1, model.head_dim),
            enable_gqa=True,
        )
        return out.reshape(batch, -1)


@dataclass
class Places(TorchDecoder):
    """Steps at several positions at once, so that every weight is read once for all of them.

    The cache is of one sequence and stays as it is: a step sees the rows before its own position, and its own key.
    """

    positions: tuple[int, ...] = ()

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits [positions, vocab], each as if its token ([positions], int64) alone were decoded there."""
        each = [self.rope(pos) for pos in self.positions]
        found = self.step(tokens, -1, (torch.stack([cos for cos, _ in each]), torch.stack([sin for _, sin in each])))
        return found.view(len(self.positions), -1)

    def attended(self, q: Tensor, k: Tensor, v: Tensor, layer: int, pos: int) -> Tensor:
        """`pos` says nothing: every row has its own."""
        model, rows = self.weights.model, len(self.positions)
        queries, found = q.view(rows, 1, model.heads, 1, model.head_dim), []
        for row, at in enumerate(self.positions):
            keys, values = (
                torch.cat([cache[layer, :, :at], own.view(rows, -1, 1, model.head_dim)[row]], dim=1).to(self.dtype)
                for cache, own in ((self.k_cache, k), (self.v_cache, v))
            )
            found.append(F.scaled_dot_product_attention(queries[row], keys[None], values[None], enable_gqa=True))
        return torch.cat(found).reshape(rows, -1)


def heads_of(qkv: Tensor, model: ModelSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value rows [batch * heads, head_dim] of [batch, rows], the heads of a sequence together."""
    rows = qkv.view(len(qkv), -1, model.head_dim)
    q, k, v = rows.split([model.heads, model.kv_heads, model.kv_heads], dim=1)
    return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


def alone(logits: Tensor) -> Tensor:
    """[batch, vocab], or [vocab] of a single sequence."""
    return logits[0] if len(logits) == 1 else logits


def as_kept(values: Tensor, cache_dtype: CacheDtype) -> Tensor:
    """`values` as a cache of that type holds them, in their own type: rounded to e4m3 for fp8."""
    if cache_dtype == "bf16":
        return values
    return values.clamp(-E4M3_MOST, E4M3_MOST).to(torch.float8_e4m3fn).to(values.dtype)


def rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE of rows [heads, head_dim] in the rotate-half layout; one rotation for all, or [n, head_dim] for as many
    rows in a row each."""
    cos, sin = (t.repeat_interleave(len(x) // len(t), 0) if t.ndim > 1 else t for t in rotation)
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin
