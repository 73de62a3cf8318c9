"""The model over a whole text at once, in numpy: logits of every position, for comparing stored weights.

Matrices come through `stored`, so that the same pass runs with any choice of formats; everything else is float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from amk.schedule_ir.bfloat import F32
from amk.schedule_ir.matrices import MatrixName
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.quantised import Quantiser, nearest, rounded
from amk.schedule_ir.rope import rope_frequencies
from amk.schedule_ir.row_groups import TensorSource
from amk.schedule_ir.weight_format import FormatName, weight_format

MATRIX_OF: dict[str, MatrixName] = {
    "wq": "qkv", "wk": "qkv", "wv": "qkv", "wo": "o", "w_gate": "gate_up", "w_up": "gate_up", "w_down": "down",
    "lm_head": "lm_head",
}  # fmt: skip
"""The streamed matrix that a checkpoint's tensor is part of, by the last part of its name."""


Forms = Mapping[MatrixName, FormatName]
Kept = dict[str, F32]
"""bf16 matrices by tensor, kept between passes."""

ROOM = 2 << 30
"""Bytes of matrices that are kept."""


@dataclass(frozen=True)
class StoredTensors:
    """Tensors as a plan holds them that has these formats in every layer, lm_head's in the first."""

    source: TensorSource
    forms: Sequence[Forms]
    quantise: Quantiser = nearest
    kept: Kept = field(default_factory=dict)

    def tensor(self, name: str, rows: slice = slice(None)) -> F32:
        place, _, part = name.rpartition(".")
        matrix = MATRIX_OF.get(part)
        if matrix is None:
            return self.source.tensor(name, rows)
        form = self.forms[int(place[1:]) if place else 0][matrix]
        whole = form == "bf16" and rows == slice(None)
        if whole and name in self.kept:
            return self.kept[name]
        values = rounded(self.source.tensor(name, rows), weight_format(form), self.quantise)
        if whole and sum(each.nbytes for each in self.kept.values()) + values.nbytes <= ROOM:
            self.kept[name] = values
        return values


def text_logits(model: ModelSpec, weights: TensorSource, tokens: Sequence[int]) -> F32:
    """f32 [len(tokens), vocab]: the logits after every token, read from position 0 on."""
    return logits_of(model, weights, hidden_states(model, weights, tokens, embedded(weights, tokens))[-1])


def embedded(weights: TensorSource, tokens: Sequence[int]) -> F32:
    """f32 [len(tokens), hidden]: what the first layer reads."""
    low, high = min(tokens), max(tokens) + 1
    return np.asarray(weights.tensor("embed", slice(low, high))[np.asarray(tokens) - low], np.float32)


def hidden_states(model: ModelSpec, weights: TensorSource, tokens: Sequence[int], x: F32, first: int = 0) -> list[F32]:
    """x, which layer `first` reads, and what every layer from there on leaves."""
    angles = np.arange(len(tokens))[:, None] * rope_frequencies(model)
    turn = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    found = [x]
    for layer in range(first, model.layers):
        x = x + _attention(model, weights, layer, _normed(model, weights, f"l{layer}.attn_norm", x), turn)
        h = _normed(model, weights, f"l{layer}.ffn_norm", x)
        gate, up = h @ weights.tensor(f"l{layer}.w_gate").T, h @ weights.tensor(f"l{layer}.w_up").T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights.tensor(f"l{layer}.w_down").T
        found.append(x)
    return found


def logits_of(model: ModelSpec, weights: TensorSource, x: F32) -> F32:
    return np.asarray(_normed(model, weights, "final_norm", x) @ weights.tensor("lm_head").T, np.float32)


def _normed(model: ModelSpec, weights: TensorSource, name: str, x: F32) -> F32:
    return _unit(model, x) * weights.tensor(name)


def _unit(model: ModelSpec, x: F32) -> F32:
    """Rows of `x` at root mean square 1."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + np.float32(model.rms_eps)), np.float32)


def _attention(model: ModelSpec, weights: TensorSource, layer: int, x: F32, turn: tuple[F32, F32]) -> F32:
    count, group = len(x), model.heads // model.kv_heads
    q = _heads(model, weights, layer, "q", x, turn).reshape(count, model.kv_heads, group, model.head_dim)
    k, v = _heads(model, weights, layer, "k", x, turn), _heads(model, weights, layer, "v", x, None)
    scores = np.einsum("tkgd,skd->kgts", q, k, optimize=True) * np.float32(model.head_dim**-0.5)
    scores[:, :, np.triu(np.ones((count, count), bool), 1)] = -np.inf
    share = np.exp(scores - scores.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    out = np.einsum("kgts,skd->tkgd", share, v, optimize=True).reshape(count, -1)
    return np.asarray(out @ weights.tensor(f"l{layer}.wo").T, np.float32)


def _heads(
    model: ModelSpec, weights: TensorSource, layer: int, letter: str, x: F32, turn: tuple[F32, F32] | None
) -> F32:
    """[tokens, heads, head_dim] of queries, keys or values, rotated where `turn` is given."""
    y = x @ weights.tensor(f"l{layer}.w{letter}").T
    if model.qkv_bias:
        y = y + weights.tensor(f"l{layer}.b{letter}")
    y = y.reshape(len(x), -1, model.head_dim)
    if turn is None:
        return np.asarray(y, np.float32)
    if model.qk_norm:
        y = _unit(model, y) * weights.tensor(f"l{layer}.{letter}_norm")
    cos, sin = turn[0][:, None], turn[1][:, None]
    a, b = np.split(y, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
