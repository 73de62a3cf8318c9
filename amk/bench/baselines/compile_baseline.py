"""Baseline `compile`: torch.compile with the recipe of gpt-fast, for one token of each sequence.

* The cache is static, with the position as a tensor. It is as long as the position needs, which favours the baseline.
* The whole step is one graph; large models have one graph for all layers.
* Coordinate descent tuning also turns products with one row into generated reductions.
* Attention is written as such products, which the compiler generates, or is the library's scaled_dot_product_attention
  over a cache that ends at the position and needs no mask.
* A CUDA graph captures the step. mode="reduce-overhead" would run the same kernels, and copy inputs that it does not
  own.

Model and position decide which products and which attention are faster. So all four combinations are compiled, and the
fastest is the baseline.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from amk.bench.baselines.graph_baseline import captured
from amk.bench.tools.accuracy import relative_error
from amk.bench.tools.subject import Subject
from amk.bench.tools.timing import HEAD_START, Contestant, WrongBaseline, timed
from amk.bench.tools.torch_model import TorchWeights, alone, heads_of, rotated
from amk.models.rope import rope_frequencies

CACHE_UNIT = 64
"""Cache lengths are multiples of this many positions."""

GENERATED = {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}
LIBRARY = {"coordinate_descent_tuning": False}
Options = dict[str, bool]
WHOLE = 16
"""Layers of a model whose step is one graph. Of more, compiling all of them takes minutes a variant, and what is fused
across the border of two layers is an addition."""
Attention = Literal["products", "sdpa"]


@dataclass(frozen=True)
class Variant:
    """One way to compile the step."""

    name: str
    attention: Attention
    options: tuple[tuple[str, bool], ...]

    def length(self, pos: int) -> int:
        """Positions of the cache: the library's attention reads all of it."""
        return pos + 1 if self.attention == "sdpa" else -(-(pos + 1) // CACHE_UNIT) * CACHE_UNIT


VARIANTS = tuple(
    Variant(f"{kind} products, {'SDPA' if attention == 'sdpa' else 'attention by products'}", attention, options)
    for attention in ("products", "sdpa")
    for kind, options in (("generated", tuple(GENERATED.items())), ("library", tuple(LIBRARY.items())))
)  # fmt: skip
WITH_GENERATED = tuple(variant for variant in VARIANTS if variant.options == tuple(GENERATED.items()))
"""For steps whose products are neither: the compiler makes the rest."""

TRIALS = 20
"""Replays of each variant that decide which one is the baseline, with the head start of a measurement."""

LOOSE = 3.0
"""A baseline with more than this many times the error of torch's own forward computes something else."""

Caches = tuple[list[Tensor], list[Tensor]]


class Layer(NamedTuple):
    """What one layer reads beside the caches; products: by matrix, as `StaticModel.times` takes them."""

    products: Mapping[str, Any]
    norms: tuple[Tensor, Tensor]
    bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None


@dataclass
class StaticModel:
    """What the step reads, as plain tensors: norms [hidden], matrices [rows, k], rotary rows [length, head_dim]."""

    weights: TorchWeights
    norms: list[Tensor]
    bias: list[Tensor]
    head_norms: list[tuple[Tensor, Tensor]]
    cos: Tensor
    sin: Tensor
    attention: Attention = "products"

    @classmethod
    def of(cls, weights: TorchWeights, length: int, dtype: torch.dtype) -> StaticModel:
        model, device = weights.model, weights.embedding.device
        positions = torch.arange(length, dtype=torch.float64)
        angles = torch.outer(positions, torch.tensor(rope_frequencies(model), dtype=torch.float64))
        angles = torch.cat([angles, angles], dim=1).to(device)
        pairs = []
        if weights.q_norm is not None and weights.k_norm is not None:
            pairs = list(zip(weights.q_norm.to(dtype), weights.k_norm.to(dtype), strict=True))
        return cls(
            weights,
            list(weights.norm.to(dtype)),
            [] if weights.bias is None else list(weights.bias.to(dtype)),
            pairs,
            angles.cos().to(dtype),
            angles.sin().to(dtype),
        )

    def step(self, token: Tensor, pos: Tensor, caches: Caches) -> Tensor:
        """Logits [batch, vocab] of `token` ([batch]) at `pos` ([1]), [vocab] for one sequence.

        Appends to caches, [batch * kv_heads, length, head_dim] a layer.
        """
        return self.by_layers(self.decoded, self.chosen, token, pos, caches)

    def by_layers(
        self, decoded: Callable[..., Tensor], chosen: Callable[..., Tensor], token: Tensor, pos: Tensor, caches: Caches
    ) -> Tensor:
        """`step` by `decoded` and `chosen`, which do what those of the model do."""
        h = F.embedding(token, self.weights.embedding)
        for number, cache in enumerate(zip(*caches, strict=True)):
            h = decoded(h, self.layer(number), pos, *cache)
        return chosen(h, self.norms[-1], self.product("lm_head", 0))

    def layer(self, number: int) -> Layer:
        """What only this layer reads."""
        return Layer(
            {name: self.product(name, number) for name in ("qkv", "o", "gate_up", "down")},
            (self.norms[2 * number], self.norms[2 * number + 1]),
            self.bias[number] if self.bias else None,
            self.head_norms[number] if self.head_norms else None,
        )

    def decoded(self, h: Tensor, layer: Layer, pos: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """The hidden state behind a layer. Nothing in it tells the layer's number: compiled once, it is all of them."""
        h = h + self._attention(self._norm(h, layer.norms[0]), layer, pos, k_cache, v_cache)
        gate, up = self.times("gate_up", layer.products["gate_up"], self._norm(h, layer.norms[1])).chunk(2, dim=-1)
        return h + self.times("down", layer.products["down"], F.silu(gate) * up)

    def chosen(self, h: Tensor, norm: Tensor, head: Any) -> Tensor:
        """The logits."""
        return alone(self.times("lm_head", head, self._norm(h, norm)))

    def product(self, name: str, layer: int) -> Any:
        """What `times` multiplies with."""
        return self.weights.matrices[name][layer]

    def times(self, name: str, product: Any, x: Tensor) -> Tensor:
        return F.linear(x, product)

    def _norm(self, h: Tensor, norm: Tensor) -> Tensor:
        return F.rms_norm(h, (h.shape[-1],), norm, self.weights.model.rms_eps)

    def _attention(self, x: Tensor, layer: Layer, pos: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        model = self.weights.model
        qkv = self.times("qkv", layer.products["qkv"], x)
        if layer.bias is not None:
            qkv = qkv + layer.bias
        q, k, v = heads_of(qkv, model)
        if layer.head_norms is not None:
            q_norm, k_norm = layer.head_norms
            q = F.rms_norm(q, (model.head_dim,), q_norm, model.rms_eps)
            k = F.rms_norm(k, (model.head_dim,), k_norm, model.rms_eps)
        rotation = self.cos[pos], self.sin[pos]
        q, k = rotated(q, rotation), rotated(k, rotation)
        k_cache[:, pos] = k.unsqueeze(1)
        v_cache[:, pos] = v.unsqueeze(1)
        if self.attention == "sdpa":
            found = self._library_attention(q, k_cache, v_cache)
            return self.times("o", layer.products["o"], found.reshape(len(x), -1))
        group = model.heads // model.kv_heads
        keys, values = (c.repeat_interleave(group, dim=0) for c in (k_cache, v_cache))
        scores = torch.matmul(q.unsqueeze(1) * model.head_dim**-0.5, keys.transpose(1, 2))
        future = torch.arange(k_cache.shape[1], device=pos.device) > pos
        share = scores.float().masked_fill(future, float("-inf")).softmax(-1).to(v.dtype)
        return self.times("o", layer.products["o"], torch.matmul(share, values).reshape(len(x), -1))

    def _library_attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Over all of the cache, whose last position is the current one."""
        model = self.weights.model
        batch = len(q) // model.heads
        keys, values = (c.view(batch, model.kv_heads, -1, model.head_dim) for c in (k_cache, v_cache))
        query = q.view(batch, model.heads, 1, model.head_dim)
        return F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def static_caches(subject: Subject, pos: int, length: int) -> Caches:
    """Per-layer caches of `length` positions with the subject's first pos rows: one tensor each, as mutation needs."""

    def cut(cache: Tensor) -> list[Tensor]:
        rows = cache.new_zeros((cache.shape[0], cache.shape[1], length, cache.shape[3]))
        rows[:, :, :pos] = cache[:, :, :pos]
        return [layer.clone() for layer in rows]

    return cut(subject.k_cache), cut(subject.v_cache)


def compiled_step(model: StaticModel, options: Options) -> Callable[[Tensor, Tensor, Caches], Tensor]:
    """The step compiled as one graph, or in two, of a layer and of the logits, where there are many layers; nothing of
    an earlier compilation is kept.
    """
    torch._dynamo.reset()
    compiler = partial(torch.compile, fullgraph=True, dynamic=False, options=options)
    if model.weights.model.layers <= WHOLE:
        function: Callable[[Tensor, Tensor, Caches], Tensor] = compiler(model.step)
        return function
    return partial(model.by_layers, compiler(model.decoded), compiler(model.chosen))


def compiled(subject: Subject, pos: int, first_token: int, torch_error: float, reference: Tensor) -> Contestant:
    """One token at `pos`, by the fastest variant. WrongBaseline if the logits of all are not those of the model."""
    model = StaticModel.of(subject.weights, VARIANTS[0].length(pos), torch.bfloat16)
    return fastest("compile", model, VARIANTS, subject, pos, first_token, (torch_error, reference))


def fastest(
    name: str, model: StaticModel, variants: Sequence[Variant], subject: Subject, pos: int, first_token: int,
    reference: tuple[float, Tensor],
) -> Contestant:  # fmt: skip
    """The fastest variant of `model`'s step; those that cannot be compiled, do not fit or are wrong are passed over.

    reference: the error that torch's own forward has, and the logits that errors are of. WrongBaseline, with the
    reasons, if no variant is left.
    """
    best: tuple[float, Callable[[], None], float] | None = None
    times, reasons = {}, []
    for variant in variants:
        try:
            result = _compiled_variant(
                replace(model, attention=variant.attention), variant, subject, pos, first_token, reference
            )
        except RuntimeError as error:  # the compiler's errors and torch's out of memory are such, too
            reasons.append(f"{variant.name}: {(str(error).strip() or type(error).__name__).splitlines()[0]}")
            result = None
        if result is not None:
            times[variant.name] = result[0]
            best = result if best is None or result[0] < best[0] else best
        del result
        gc.collect()
        torch.cuda.empty_cache()
    if best is None:
        raise WrongBaseline("; ".join(reasons))
    return Contestant(name, 1, torch.cuda.current_stream(), best[1], variants=times, error=best[2])


def _compiled_variant(
    model: StaticModel, variant: Variant, subject: Subject, pos: int, first_token: int, reference: tuple[float, Tensor]
) -> tuple[float, Callable[[], None], float]:
    """Median ms of some replays, the replay, and the error of its logits. WrongBaseline if they are not the model's."""
    caches = static_caches(subject, pos, variant.length(pos))
    first = subject.tokens(first_token)
    token, where = first.clone(), torch.tensor([pos], device="cuda")
    function = compiled_step(model, dict(variant.options))
    with torch.no_grad():
        error = relative_error(function(token.copy_(first), where, caches), reference[1])
    if not error <= LOOSE * reference[0]:
        raise WrongBaseline(f"its logits have error {error:.2e}, torch's own forward {reference[0]:.2e}")
    replay = captured(partial(advance, function, token, where, caches))
    stream = torch.cuda.current_stream()
    return sorted(timed(stream, replay, HEAD_START) for _ in range(TRIALS))[TRIALS // 2], replay, error


def advance(function: Callable[[Tensor, Tensor, Caches], Tensor], token: Tensor, where: Tensor, caches: Caches) -> None:
    """Every sequence's token becomes the one that follows it."""
    token.copy_(function(token, where, caches).argmax(-1).view_as(token))
