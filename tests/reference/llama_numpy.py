"""An independent Llama-family decoder in plain numpy, the yardstick of the end-to-end tests.

It shares nothing with amk: no IR, no op references, no checkpoint reader. It takes a dictionary of arrays, so whoever
supplies the arrays is tested separately. Every product accumulates in `dtype` (fp32 or fp64).

Sources: the Llama, Qwen2.5 and Qwen3 model cards and papers; RoPE in the rotate-half form (the two members of a
rotated pair sit head_dim/2 apart); the llama3 frequency scaling as published with Llama 3.1.

Arrays: 'embed' [vocab, hidden], optional 'lm_head' [vocab, hidden] (absent: tied to 'embed'), 'final_norm' [hidden],
and for each layer i 'l{i}.attn_norm', 'l{i}.wq|wk|wv|wo', optional 'l{i}.bq|bk|bv', optional 'l{i}.q_norm|k_norm'
[head_dim], 'l{i}.ffn_norm', 'l{i}.w_gate|w_up|w_down'. Matrices are [out, in].
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Llama3Scaling:
    """Frequency-dependent stretching of RoPE: long wavelengths by `factor`, short ones not, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class Config:
    """The sizes of a model, as its config.json gives them."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None = None


def rope_frequencies(config: Config) -> Array:
    """Angle per position of each of the head_dim/2 rotated pairs, fp64."""
    pairs = np.arange(config.head_dim // 2, dtype=np.float64)
    frequency = config.rope_theta ** (-2.0 * pairs / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return frequency
    turns = scaling.original_context * frequency / (2 * np.pi)  # full turns inside the original context
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = np.clip(ramp, 0.0, 1.0)
    return keep * frequency + (1.0 - keep) * frequency / scaling.factor


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def rotate(x: Array, angle: Array) -> Array:
    """x [T, heads, head_dim], angle [T, head_dim/2]: each pair (j, j + head_dim/2) turned by its angle."""
    cos, sin = np.cos(angle)[:, None, :].astype(x.dtype), np.sin(angle)[:, None, :].astype(x.dtype)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@dataclass
class Decoder:
    """A model with its KV cache; `forward` appends tokens, so one instance is one conversation.

    kept: what the cache makes of keys and values.
    """

    config: Config
    weights: Mapping[str, Array]
    dtype: Any = np.float32
    length: int = 0
    cache: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    kept: Callable[[Array], Array] = np.asarray

    def __post_init__(self) -> None:
        self.weights = {name: np.asarray(array, dtype=self.dtype) for name, array in self.weights.items()}
        self._frequencies = rope_frequencies(self.config)

    def forward(self, tokens: Sequence[int]) -> Array:
        """Appends `tokens` and returns the logits [vocab] after the last of them."""
        x = self.weights["embed"][np.asarray(tokens)]
        for layer in range(self.config.layers):
            x = x + self._attention(layer, x)
            x = x + self._feed_forward(layer, x)
        self.length += len(tokens)
        last = rms_norm(x[-1], self.weights["final_norm"], self.config.rms_eps)
        head = self.weights.get("lm_head", self.weights["embed"])
        return np.asarray(head @ last)

    def _projected(self, layer: int, x: Array, letter: str, heads: int) -> Array:
        """x [T, hidden] times one of wq, wk, wv: [T, heads, head_dim], biased and normalised where the model does."""
        out = x @ self.weights[f"l{layer}.w{letter}"].T
        if f"l{layer}.b{letter}" in self.weights:
            out = out + self.weights[f"l{layer}.b{letter}"]
        out = out.reshape(len(x), heads, self.config.head_dim)
        norm = self.weights.get(f"l{layer}.{letter}_norm")
        return out if norm is None else rms_norm(out, norm, self.config.rms_eps)

    def _attention(self, layer: int, x: Array) -> Array:
        config, count = self.config, len(x)
        normed = rms_norm(x, self.weights[f"l{layer}.attn_norm"], config.rms_eps)
        positions = np.arange(self.length, self.length + count)
        angle = positions[:, None] * self._frequencies[None, :]
        q = rotate(self._projected(layer, normed, "q", config.heads), angle)
        k = rotate(self._projected(layer, normed, "k", config.kv_heads), angle)
        k, v = self.kept(k), self.kept(self._projected(layer, normed, "v", config.kv_heads))
        if layer in self.cache:
            k, v = (np.concatenate([old, new]) for old, new in zip(self.cache[layer], (k, v), strict=True))
        self.cache[layer] = (k, v)
        group = config.heads // config.kv_heads
        q = q.reshape(count, config.kv_heads, group, config.head_dim)
        scores = np.einsum("tkgd,skd->kgts", q, k, optimize=True) / self.dtype(np.sqrt(config.head_dim))
        future = np.arange(len(k))[None, :] > positions[:, None]
        weights = softmax(np.where(future, self.dtype(-np.inf), scores))
        out = np.einsum("kgts,skd->tkgd", weights, v, optimize=True).reshape(count, -1)
        return np.asarray(out @ self.weights[f"l{layer}.wo"].T)

    def _feed_forward(self, layer: int, x: Array) -> Array:
        normed = rms_norm(x, self.weights[f"l{layer}.ffn_norm"], self.config.rms_eps)
        gate = normed @ self.weights[f"l{layer}.w_gate"].T
        up = normed @ self.weights[f"l{layer}.w_up"].T
        swish = gate / (self.dtype(1) + np.exp(-gate))
        return np.asarray((swish * up) @ self.weights[f"l{layer}.w_down"].T)


def greedy(decoder: Decoder, prompt: Sequence[int], stop: Collection[int], limit: int) -> Iterator[tuple[int, float]]:
    """Yields (token, gap to the second-best logit) for at most `limit` tokens; a token of `stop` is yielded last."""
    logits = decoder.forward(prompt)
    for _ in range(limit):
        second, best = np.argpartition(logits, -2)[-2:]
        yield int(best), float(logits[best] - logits[second])
        if int(best) in stop:
            return
        logits = decoder.forward([int(best)])
