"""Keys and values of one text, which grow as it is read, and attention over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from amk.models.model_spec import ModelSpec
from amk.weights.bfloat import F32

ROOM = 256
"""Positions that a text has room for when it begins."""


class TextCache:
    """length: tokens that were read and are kept. context: the most there are."""

    def __init__(self, model: ModelSpec, context: int) -> None:
        self._model, self._context, self.length = model, context, 0
        self._keys = [self._empty(0) for _ in range(model.layers)]
        self._values = [self._empty(0) for _ in range(model.layers)]

    def reserve(self, positions: int) -> None:
        """Room for so many positions; it grows by half of what there is.

        They are more than the context for a wide tree only, whose nodes have positions inside it.
        """
        have = self._keys[0].shape[1]
        if positions <= have:
            return
        room = max(positions, min(self._context, max(have + have // 2, ROOM)))
        for cache in (self._keys, self._values):
            for layer, old in enumerate(cache):
                cache[layer] = self._empty(room)
                cache[layer][:, : self.length] = old[:, : self.length]

    def rows(self) -> list[tuple[F32, F32]]:
        """Keys and values of each layer, [KV heads, positions, head_dim] for as many as there is room for; keys are
        turned by their position. They are the memory itself, until more room is reserved."""
        return list(zip(self._keys, self._values, strict=True))

    def attended(self, layer: int, q: F32, k: F32, v: F32, hidden: NDArray[np.bool_] | None) -> F32:
        """What attention makes of rows behind the text, [rows, q_dim]; their keys and values go behind those of it.

        q, k, v: [rows, heads, head_dim], turned. hidden: [rows, length + rows], true where a row does not see a
        position; None: it sees all.
        """
        model, count, end = self._model, len(q), self.length + len(q)
        self._keys[layer][:, self.length : end] = k.swapaxes(0, 1)
        self._values[layer][:, self.length : end] = v.swapaxes(0, 1)
        keys, values = self._keys[layer][:, :end], self._values[layer][:, :end]
        # Rows of a KV head: its query heads, and within each the tokens.
        grouped = q.reshape(count, model.kv_heads, model.group, -1).transpose(1, 2, 0, 3)
        rows = np.ascontiguousarray(grouped).reshape(model.kv_heads, model.group * count, model.head_dim)
        scores = np.matmul(rows, keys.swapaxes(1, 2))
        scores *= np.float32(model.head_dim**-0.5)
        if hidden is not None:
            np.copyto(scores.reshape(model.kv_heads, model.group, count, end), np.float32(-np.inf), where=hidden)
        out = np.matmul(softmax(scores), values).reshape(model.kv_heads, model.group, count, -1)
        return np.asarray(out.transpose(2, 0, 1, 3).reshape(count, -1), np.float32)

    def _empty(self, positions: int) -> F32:
        """Keys or values of one layer, [KV heads, positions, head_dim]."""
        return np.zeros((self._model.kv_heads, positions, self._model.head_dim), np.float32)


def softmax(x: F32) -> F32:
    """Over the last axis, in place."""
    x -= x.max(axis=-1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=-1, keepdims=True)
    return x
