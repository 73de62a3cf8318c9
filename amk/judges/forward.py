"""A decoder of the Llama, Qwen and GPT-NeoX families in plain numpy, a token at a time: what schedules have to compute.

Property: the logits are those of the model's published definition, in float64, on the given numbers. Nothing here knows
of schedules, workers, buffers, chunks or footprints; the only input besides numbers is the model's description.

Sources: the model cards and papers of Llama 2, Llama 3.1, Qwen2.5 and Qwen3; RoPE (arXiv 2104.09864) in the form that
turns elements i and i + head_dim / 2 of a head together; RMSNorm (arXiv 1910.07467); SwiGLU (arXiv 2002.05202);
GPT-NeoX-20B (arXiv 2204.06745), LayerNorm (arXiv 1607.06450), GELU (arXiv 1606.08415).

Cost: one product with every weight per token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.models.model_spec import ModelSpec

Floats = NDArray[np.float64]
Rows = Sequence[tuple[Floats, Floats]]
"""Keys and values of every layer, f64 [positions, kv_heads, head_dim] each."""


def as_it_is(values: Floats) -> Floats:
    return values


@dataclass
class ForwardPass:
    """One text of one sequence.

    tensors: 'embed' and 'lm_head' [vocab, hidden], 'final_norm' [hidden], and for layer i 'l{i}.attn_norm',
    'l{i}.ffn_norm' [hidden], 'l{i}.wq|wk|wv|wo|w_gate|w_up|w_down' [out, in], and where the model has them
    'l{i}.bq|bk|bv' [out] and 'l{i}.q_norm|k_norm' [head_dim]; GPT-NeoX has shifts beside norms ('l{i}.attn_shift',
    'final_shift'), 'l{i}.bo|b_up|b_down' [out] and no w_gate. cached_as: what the cache makes of keys and values.
    read: what becomes of a vector that a matrix is multiplied with.
    """

    model: ModelSpec
    tensors: Mapping[str, NDArray[Any]]
    cached_as: Callable[[Floats], Floats] = as_it_is
    read: Callable[[Floats], Floats] = as_it_is

    def __post_init__(self) -> None:
        self._cache: list[list[tuple[Floats, Floats]]] = [[] for _ in range(self.model.layers)]
        self._turns = angles_per_position(self.model)

    @property
    def position(self) -> int:
        """Of the next token."""
        return len(self._cache[0])

    def resume(self, rows: Rows) -> None:
        """Go on behind positions whose keys and values are given."""
        self._cache = [[(k[i], v[i]) for i in range(len(k))] for k, v in rows]

    def cache(self) -> list[tuple[Floats, Floats]]:
        """The keys and values so far, for `resume`."""
        return [(np.array([k for k, _ in layer]), np.array([v for _, v in layer])) for layer in self._cache]

    def feed(self, token: int) -> Floats:
        """Read `token` at the next position; the logits that follow it, f64 [vocab]."""
        return self.logits_of(self.through(self._get("embed")[token].copy()))

    def logits_of(self, stream: Floats) -> Floats:
        """The logits of the hidden state behind the last layer, f64 [vocab]."""
        neox = self.model.family == "gpt_neox"
        last = self._centred(stream, "final") if neox else self._normed(stream, "final_norm")
        return self._times("lm_head", last)

    def through(self, stream: Floats) -> Floats:
        """The hidden state behind the layers of one before them, at the next position."""
        block = self._neox_block if self.model.family == "gpt_neox" else self._llama_block
        for layer in range(self.model.layers):
            stream = block(layer, stream)
        return stream

    def _llama_block(self, layer: int, stream: Floats) -> Floats:
        get = self._get
        attended = self._attention(layer, self._normed(stream, f"l{layer}.attn_norm"))
        stream = stream + self._times(f"l{layer}.wo", attended)
        inner = self.read(self._normed(stream, f"l{layer}.ffn_norm"))
        gate, up = get(f"l{layer}.w_gate") @ inner, get(f"l{layer}.w_up") @ inner
        return stream + self._times(f"l{layer}.w_down", gate / (1 + np.exp(-gate)) * up)

    def _neox_block(self, layer: int, stream: Floats) -> Floats:
        """Attention and MLP of the same hidden state, or the MLP of the one with attention added."""
        get = self._get
        attended = self._times(f"l{layer}.wo", self._attention(layer, self._centred(stream, f"l{layer}.attn")))
        if self.model.qkv_bias:
            attended = attended + get(f"l{layer}.bo")
        inner = self._centred(stream if self.model.parallel else stream + attended, f"l{layer}.ffn")
        wide = self._times(f"l{layer}.w_up", inner) + get(f"l{layer}.b_up")
        if self.model.activation == "gelu":
            share = np.array([1 + math.erf(value / math.sqrt(2)) for value in wide.tolist()]) / 2
        else:
            share = (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))) / 2
        return stream + attended + self._times(f"l{layer}.w_down", wide * share) + get(f"l{layer}.b_down")

    def _times(self, name: str, values: Floats) -> Floats:
        return np.asarray(self._get(name) @ self.read(values))

    def _get(self, name: str) -> Floats:
        return np.asarray(self.tensors[name], np.float64)

    def _normed(self, values: Floats, name: str) -> Floats:
        mean_square = float(values @ values) / values.size
        return np.asarray(values / math.sqrt(mean_square + self.model.rms_eps) * self._get(name))

    def _centred(self, values: Floats, name: str) -> Floats:
        """LayerNorm."""
        off = values - values.mean()
        unit = off / math.sqrt(float(off @ off) / off.size + self.model.rms_eps)
        return np.asarray(unit * self._get(f"{name}_norm") + self._get(f"{name}_shift"))

    def _heads(self, layer: int, letter: str, values: Floats) -> list[Floats]:
        """The heads of one projection, biased and normalised where the model says so."""
        out = self._get(f"l{layer}.w{letter}") @ values
        if self.model.qkv_bias:
            out = out + self._get(f"l{layer}.b{letter}")
        heads = [out[at : at + self.model.head_dim] for at in range(0, out.size, self.model.head_dim)]
        if self.model.qk_norm and letter != "v":
            heads = [self._normed(head, f"l{layer}.{letter}_norm") for head in heads]
        return heads

    def _turned(self, head: Floats, position: int) -> Floats:
        half = head.size // 2
        pairs = (head[:half] + 1j * head[half:]) * np.exp(1j * position * self._turns)
        return np.concatenate([pairs.real, pairs.imag])

    def _attention(self, layer: int, values: Floats) -> Floats:
        model, position, values = self.model, len(self._cache[layer]), self.read(values)
        keys = [self._turned(head, position) for head in self._heads(layer, "k", values)]
        row = self.cached_as(np.array(keys)), self.cached_as(np.array(self._heads(layer, "v", values)))
        self._cache[layer].append(row)
        out = []
        for number, head in enumerate(self._heads(layer, "q", values)):
            query, served = self._turned(head, position), number * model.kv_heads // model.heads
            scores = np.array([query @ k[served] for k, _ in self._cache[layer]]) / math.sqrt(model.head_dim)
            powers = np.exp(scores - scores.max())
            mixed = sum(power * v[served] for power, (_, v) in zip(powers, self._cache[layer], strict=True))
            out.append(mixed / powers.sum())
        return np.concatenate(out)


def angles_per_position(model: ModelSpec) -> Floats:
    """Radians that pair i of a head is turned by at each position, f64 [head_dim / 2].

    theta^(-2i / d); with `llama3` scaling a pair that makes fewer than low_freq_factor turns in the original context
    turns `factor` times slower, one that makes more than high_freq_factor as before, and between them a mean of both,
    linear in the number of turns (Llama 3.1's published `apply_scaling`). Of a head that is rotated in part, d is that
    part, and the pairs behind it are not turned.
    """
    part = model.rotary_dim or model.head_dim
    own = np.array([model.rope_theta ** (-2 * i / part) if 2 * i < part else 0.0 for i in range(model.head_dim // 2)])
    scaling = model.rope_scaling
    if scaling is None:
        return own
    out = []
    for angle in own.tolist():
        turns = scaling.original_context * angle / (2 * math.pi)
        share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        share = min(max(share, 0.0), 1.0)
        out.append(share * angle + (1 - share) * angle / scaling.factor)
    return np.array(out)
