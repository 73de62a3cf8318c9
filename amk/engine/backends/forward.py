"""The model as a plain forward pass in numpy: float32 arithmetic on the weights as they are stored, without a schedule.

A pass reads a block of tokens at once, appends their keys and values to a cache and returns logits, so a prompt costs a
few products of matrices and every further token one product of a matrix and a vector for each matrix of the model.

Matrices are kept as float32 while `memory` lasts; the others are read from the checkpoint by pieces at every use, so a
model runs whenever its file and its cache fit, only slower. Cost of a token: 4 bytes read for every parameter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.products import product
from amk.engine.backends.room import Token
from amk.engine.checkpoints.checkpoint import Checkpoint
from amk.interpreter.decoder import heads_of, layer_output, normed, rotated
from amk.models.rope import rope_frequencies
from amk.report.diagnostic import AmkError, Diagnostic
from amk.weights.bfloat import F32

BLOCK = 256
"""Tokens of a prompt that are read at once."""
PIECE = 64 << 20
"""Bytes of a matrix that is not kept, converted at a time."""
RESERVE = 0.7
"""Share of the available memory that matrices may take unless told otherwise."""


class ForwardPass:
    """One text: its cache, and the model that continues it. Not thread safe.

    context: the most positions of the cache. memory: bytes for kept matrices; default: 70% of what the machine has
    available.
    """

    def __init__(self, source: Checkpoint, context: int, memory: int | None = None) -> None:
        model = source.spec
        self.model, self.context, self.length = model, context, 0
        self._source = source
        self._room = int(RESERVE * available_memory()) if memory is None else memory
        self._kept: dict[tuple[str, ...], F32] = {}
        self._vectors: dict[str, F32] = {}
        self._frequencies = rope_frequencies(model)
        self._keys = [self._empty(0) for _ in range(model.layers)]
        self._values = [self._empty(0) for _ in range(model.layers)]

    def read(self, tokens: Sequence[Token], every: bool = False) -> F32:
        """Append `tokens` (at least one) to the text: logits f32 [vocab] after the last, or [tokens, vocab] after each.

        AMK014 if the cache has no room for them.
        """
        return self.last(tokens, len(tokens)) if every else self.last(tokens, 1)[0]

    def last(self, tokens: Sequence[Token], count: int) -> F32:
        """As `read`: logits f32 [count, vocab] after the last `count` tokens."""
        return self._logits(self._blocks(tokens)[-count:])

    def states(self, tokens: Sequence[Token]) -> F32:
        """As `read`: what lm_head is multiplied with, f32 [tokens, hidden size], behind the last norm."""
        return self._normed(self._blocks(tokens))

    def _blocks(self, tokens: Sequence[Token]) -> F32:
        """Append tokens: what leaves the last layer for each of them."""
        if self.length + len(tokens) > self.context:
            held = f"the cache holds {self.context:,} positions, the text has {self.length + len(tokens):,}"
            raise AmkError(Diagnostic("AMK014", held, help="load the model with a larger max_context"))
        return np.concatenate([self._read_block(tokens[at : at + BLOCK]) for at in range(0, len(tokens), BLOCK)])

    def keep(self, length: int) -> None:
        """Forget everything behind the first `length` tokens; ValueError if there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"the text has {self.length} tokens, {length} cannot be kept")
        self.length = length

    def branches(self, nodes: Sequence[int], parents: Sequence[int]) -> F32:
        """Logits f32 [nodes, vocab] after the text and the path to each node of a tree, which is not appended.

        parents: of each node the number of one before it, or -1 for a node that follows the text. All nodes are read at
        once: each sees the text, those on its path and itself.
        """
        count = len(nodes)
        depth, hidden = np.zeros(count, np.int64), np.ones((count, self.length + count), np.bool_)
        hidden[:, : self.length] = False
        for node, parent in enumerate(parents):
            if parent >= 0:
                depth[node] = depth[parent] + 1
                hidden[node] = hidden[parent]
            hidden[node, self.length + node] = False
        return self._logits(self._states(nodes, self.length + depth, hidden))

    def embeddings(self, tokens: Sequence[Token]) -> F32:
        """f32 [tokens, hidden size]: what enters the first layer."""
        return np.concatenate([self._embedded(token) for token in tokens])

    def _read_block(self, tokens: Sequence[Token]) -> F32:
        end = self.length + len(tokens)
        positions = np.arange(self.length, end)
        hidden = np.arange(end)[None, :] > positions[:, None] if len(tokens) > 1 else None
        x = self._states(tokens, positions, hidden)
        self.length = end
        return x

    def _normed(self, x: F32) -> F32:
        return normed(self.model, self.model.graph.final_norm, x, self._vector)

    def _logits(self, x: F32) -> F32:
        return self._product(self._normed(x), ("lm_head",))

    def _states(self, tokens: Sequence[Token], positions: NDArray[np.int64], hidden: NDArray[np.bool_] | None) -> F32:
        """What leaves the last layer, [tokens, hidden size]; keys and values go behind those of the text.

        hidden: [tokens, all positions that the cache then has], true where a token does not see one; None: it sees all.
        """
        x = self.embeddings(tokens)
        angles = positions[:, None] * self._frequencies
        turn = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self._reserve(self.length + len(tokens))
        for layer in range(self.model.layers):
            attend = partial(self._attention, layer, turn, hidden)
            x = layer_output(self.model, layer, x, self._product, self._vector, attend)
        return x

    def _attention(self, layer: int, turn: tuple[F32, F32], hidden: NDArray[np.bool_] | None, joint: F32) -> F32:
        model, count, end = self.model, len(joint), self.length + len(joint)
        q, k, v = heads_of(model, layer, joint, self._vector)
        self._keys[layer][:, self.length : end] = rotated(k, turn).swapaxes(0, 1)
        self._values[layer][:, self.length : end] = v.swapaxes(0, 1)
        keys, values = self._keys[layer][:, :end], self._values[layer][:, :end]
        # Rows of a KV head: its query heads, and within each the tokens.
        grouped = rotated(q, turn).reshape(count, model.kv_heads, model.group, -1).transpose(1, 2, 0, 3)
        rows = np.ascontiguousarray(grouped).reshape(model.kv_heads, model.group * count, model.head_dim)
        scores = np.matmul(rows, keys.swapaxes(1, 2))
        scores *= np.float32(model.head_dim**-0.5)
        if hidden is not None:
            np.copyto(scores.reshape(model.kv_heads, model.group, count, end), np.float32(-np.inf), where=hidden)
        out = np.matmul(softmax(scores), values).reshape(model.kv_heads, model.group, count, -1)
        return np.asarray(out.transpose(2, 0, 1, 3).reshape(count, -1), np.float32)

    def _vector(self, name: str) -> F32:
        if name not in self._vectors:
            self._vectors[name] = self._source.tensor(name)
        return self._vectors[name]

    def _product(self, x: F32, names: tuple[str, ...]) -> F32:
        """x [tokens, in] times the matrices [out, in], one below the other: [tokens, out in all]."""
        kept = self._matrix(names)
        if kept is not None:
            return product(x, kept)
        parts: list[F32] = []
        for name in names:
            count = self._source.shape(name)[0]
            step = max(1, PIECE // (4 * x.shape[1]))
            for first in range(0, count, step):
                parts.append(product(x, self._source.tensor(name, slice(first, min(first + step, count)))))
        return np.concatenate(parts, axis=1)

    def _matrix(self, names: tuple[str, ...]) -> F32 | None:
        """The matrices as one float32 array, or None where they do not fit the memory for them."""
        if names not in self._kept:
            rows = [self._source.shape(name)[0] for name in names]
            joint_shape = (sum(rows), self._source.shape(names[0])[1])
            if 4 * prod(joint_shape) > self._room:
                return None
            self._room -= 4 * prod(joint_shape)
            joint = np.empty(joint_shape, np.float32)
            for name, end, count in zip(names, accumulate(rows), rows, strict=True):
                self._source.fill(name, joint[end - count : end])
            self._kept[names] = joint
        return self._kept[names]

    def _embedded(self, token: Token) -> F32:
        """The embedding of a token, [1, hidden]; tied ones are rows of the kept lm_head."""
        if isinstance(token, bytes):
            return np.frombuffer(token, np.float32)[None]
        kept = self._kept.get(("lm_head",)) if self.model.tied_embeddings else None
        return kept[token : token + 1] if kept is not None else self._source.tensor("embed", slice(token, token + 1))

    def _reserve(self, positions: int) -> None:
        """Room for so many positions in the cache, which grows by half of what it has.

        They are more than the context for a wide tree only, whose nodes have positions inside it.
        """
        have = self._keys[0].shape[1]
        if positions <= have:
            return
        room = max(positions, min(self.context, max(have + have // 2, BLOCK)))
        for cache in (self._keys, self._values):
            for layer, old in enumerate(cache):
                cache[layer] = self._empty(room)
                cache[layer][:, : self.length] = old[:, : self.length]

    def _empty(self, positions: int) -> F32:
        """Keys or values of one layer, [KV heads, positions, head_dim]."""
        return np.zeros((self.model.kv_heads, positions, self.model.head_dim), np.float32)


def softmax(x: F32) -> F32:
    """Over the last axis, in place."""
    x -= x.max(axis=-1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=-1, keepdims=True)
    return x


def available_memory() -> int:
    """Bytes that processes can take without swapping, or half of the memory where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 if hasattr(os, "sysconf") else 4 << 30
