"""The model over a whole text at once, in numpy: logits of every position, for comparing stored weights.

Matrices come through `stored`, so that the same pass runs with any choice of formats; everything else is float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from amk.interpreter.decoder import heads_of, layer_output, normed, rotated
from amk.models.matrices import MatrixName
from amk.models.model_spec import ModelSpec
from amk.models.rope import rope_frequencies
from amk.models.row_groups import TensorSource
from amk.weights.bfloat import F32
from amk.weights.quantised import Quantiser, nearest, rounded
from amk.weights.weight_format import FormatName, weight_format

Forms = Mapping[MatrixName, FormatName]
Matrices = dict[str, F32]
"""bf16 matrices by tensor, kept between passes."""

ROOM = 2 << 30
"""Bytes of matrices that are kept."""


@dataclass(frozen=True)
class StoredTensors:
    """Tensors as a plan holds them that has these formats in every layer, lm_head's in the first."""

    model: ModelSpec
    source: TensorSource
    forms: Sequence[Forms]
    quantise: Quantiser = nearest
    cache: Matrices = field(default_factory=dict)

    def tensor(self, name: str, rows: slice = slice(None)) -> F32:
        place, _, part = name.rpartition(".")
        matrix = self.model.graph.matrix_of.get(part)
        if matrix is None:
            return self.source.tensor(name, rows)
        form = self.forms[int(place[1:]) if place else 0][matrix]
        whole = form == "bf16" and rows == slice(None)
        if whole and name in self.cache:
            return self.cache[name]
        values = rounded(self.source.tensor(name, rows), weight_format(form), self.quantise)
        if whole and sum(each.nbytes for each in self.cache.values()) + values.nbytes <= ROOM:
            self.cache[name] = values
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
    states = [x]

    def product(rows: F32, names: tuple[str, ...]) -> F32:
        return np.concatenate([rows @ weights.tensor(name).T for name in names], axis=1)

    for layer in range(first, model.layers):
        attend = partial(_attention, model, weights, layer, turn)
        x = layer_output(model, layer, x, product, weights.tensor, attend)
        states.append(x)
    return states


def logits_of(model: ModelSpec, weights: TensorSource, x: F32) -> F32:
    last = normed(model, model.graph.final_norm, x, weights.tensor)
    return np.asarray(last @ weights.tensor("lm_head").T, np.float32)


def _attention(model: ModelSpec, weights: TensorSource, layer: int, turn: tuple[F32, F32], joint: F32) -> F32:
    count, group = len(joint), model.heads // model.kv_heads
    q, k, v = heads_of(model, layer, joint, weights.tensor)
    q, k = rotated(q, turn).reshape(count, model.kv_heads, group, model.head_dim), rotated(k, turn)
    scores = np.einsum("tkgd,skd->kgts", q, k, optimize=True) * np.float32(model.head_dim**-0.5)
    scores[:, :, np.triu(np.ones((count, count), bool), 1)] = -np.inf
    share = np.exp(scores - scores.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("kgts,skd->tkgd", share, v, optimize=True).reshape(count, -1), np.float32)
