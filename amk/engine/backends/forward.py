"""The model as a plain forward pass in numpy: float32 arithmetic on the weights as they are stored, without a schedule.

A pass reads some tokens of one text or of several, appends their keys and values to each text's cache and returns
logits. Matrices are multiplied with the rows of all texts at once, so a pass over several texts reads them once; what a
text gets is bitwise what a pass over it alone gives.

Matrices are kept as float32 while `memory` lasts; the others are read from the checkpoint by pieces at every use, so a
model runs whenever its file and its caches fit, only slower. Cost of a pass: 4 bytes read for every parameter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.products import product
from amk.engine.backends.room import Token
from amk.engine.backends.text_cache import TextCache
from amk.engine.checkpoints.checkpoint import Checkpoint
from amk.interpreter.decoder import heads_of, layer_output, normed, rotated
from amk.models.rope import rope_frequencies
from amk.weights.bfloat import F32

PIECE = 64 << 20
"""Bytes of a matrix that is not kept, converted at a time."""
RESERVE = 0.7
"""Share of the available memory that matrices may take unless told otherwise."""


@dataclass(frozen=True)
class Part:
    """What a pass reads of one text: tokens behind it, to which they are appended.

    outputs: of how many of the last rows something is returned, logits or, with `states`, what lm_head is multiplied
    with. parents: the tokens are the nodes of a tree: of each the number of one before it, or -1 for a node that
    follows the text; each sees the text, those on its path and itself. Those are appended that follow each other from
    the first on.
    """

    text: TextCache
    tokens: Sequence[Token]
    outputs: int
    states: bool = False
    parents: Sequence[int] | None = None

    @property
    def appended(self) -> int:
        """Tokens that are part of the text from now on."""
        behind = range(-1, len(self.tokens) - 1) if self.parents is None else self.parents
        return next((node for node, parent in enumerate(behind) if parent != node - 1), len(self.tokens))

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Positions of the tokens, and what they do not see: see `TextCache.attended`."""
        count, length = len(self.tokens), self.text.length
        if self.parents is None:
            positions = np.arange(length, length + count)
            return positions, np.arange(length + count)[None, :] > positions[:, None] if count > 1 else None
        depth, hidden = np.zeros(count, np.int64), np.ones((count, length + count), np.bool_)
        hidden[:, :length] = False
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                depth[node] = depth[parent] + 1
                hidden[node] = hidden[parent]
            hidden[node, length + node] = False
        return length + depth, hidden


class ForwardPass:
    """The model; texts are the caller's. Not thread safe.

    context: the most positions of a text. memory: bytes for kept matrices; default: 70% of what the machine has
    available.
    """

    caches = True

    def __init__(self, source: Checkpoint, context: int, memory: int | None = None) -> None:
        self.model, self.context = source.spec, context
        self._source = source
        self._room = int(RESERVE * available_memory()) if memory is None else memory
        self._matrices: dict[tuple[str, ...], F32] = {}
        self._vectors: dict[str, F32] = {}
        self._frequencies = rope_frequencies(self.model)

    def text(self) -> TextCache:
        """A text without tokens."""
        return TextCache(self.model, self.context)

    def read(self, parts: Sequence[Part]) -> list[F32]:
        """One pass over parts of different texts, whose contexts have room for them: what each part wants, f32
        [wanted, vocab], or [wanted, hidden size] of states."""
        x, sizes = self._through(parts), [len(part.tokens) for part in parts]
        last = [np.s_[end - part.outputs : end] for part, end in zip(parts, accumulate(sizes), strict=True)]
        found = [normed(self.model, self.model.graph.final_norm, x[rows], self._vector) for rows in last]
        heads = [n for n, part in enumerate(parts) if part.outputs and not part.states]
        if heads:
            counts = [parts[n].outputs for n in heads]
            logits = self._product(counts, np.concatenate([found[n] for n in heads]), ("lm_head",))
            for n, rows in zip(heads, np.split(logits, list(accumulate(counts))[:-1]), strict=True):
                found[n] = rows
        for part in parts:
            part.text.length += part.appended
        return found

    def embeddings(self, tokens: Sequence[Token]) -> F32:
        """f32 [tokens, hidden size]: what enters the first layer."""
        return np.concatenate([self._embedded(token) for token in tokens])

    def free(self) -> None:
        """Nothing is held outside the process."""

    def _through(self, parts: Sequence[Part]) -> F32:
        """What leaves the last layer for the tokens of all parts, [tokens, hidden size]."""
        places, sizes = [part.places() for part in parts], [len(part.tokens) for part in parts]
        angles = np.concatenate([positions for positions, _ in places])[:, None] * self._frequencies
        turn = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        for part in parts:
            part.text.reserve(part.text.length + len(part.tokens))
        x = np.concatenate([self.embeddings(part.tokens) for part in parts])
        hidden = [unseen for _, unseen in places]
        for layer in range(self.model.layers):
            attend = partial(self._attention, layer, parts, turn, hidden)
            x = layer_output(self.model, layer, x, partial(self._product, sizes), self._vector, attend)
        return x

    def _attention(
        self,
        layer: int,
        parts: Sequence[Part],
        turn: tuple[F32, F32],
        hidden: Sequence[NDArray[np.bool_] | None],
        joint: F32,
    ) -> F32:
        q, k, v = heads_of(self.model, layer, joint, self._vector)
        q, k = rotated(q, turn), rotated(k, turn)
        out, first = np.empty((len(joint), self.model.q_dim), np.float32), 0
        for part, unseen in zip(parts, hidden, strict=True):
            rows = np.s_[first : first + len(part.tokens)]
            out[rows] = part.text.attended(layer, q[rows], k[rows], v[rows], unseen)
            first += len(part.tokens)
        return out

    def _vector(self, name: str) -> F32:
        if name not in self._vectors:
            self._vectors[name] = self._source.tensor(name)
        return self._vectors[name]

    def _product(self, sizes: Sequence[int], x: F32, names: tuple[str, ...]) -> F32:
        """x [tokens, in] times the matrices [out, in], one below the other: [tokens, out in all]; sizes: of the parts
        of x."""
        kept = self._matrix(names)
        if kept is not None:
            return product(x, kept, sizes)
        found: list[F32] = []
        for name in names:
            count = self._source.shape(name)[0]
            step = max(1, PIECE // (4 * x.shape[1]))
            for first in range(0, count, step):
                piece = self._source.tensor(name, slice(first, min(first + step, count)))
                found.append(product(x, piece, sizes))
        return np.concatenate(found, axis=1)

    def _matrix(self, names: tuple[str, ...]) -> F32 | None:
        """The matrices as one float32 array, or None where they do not fit the memory for them."""
        if names not in self._matrices:
            rows = [self._source.shape(name)[0] for name in names]
            joint_shape = (sum(rows), self._source.shape(names[0])[1])
            if 4 * prod(joint_shape) > self._room:
                return None
            self._room -= 4 * prod(joint_shape)
            joint = np.empty(joint_shape, np.float32)
            for name, end, count in zip(names, accumulate(rows), rows, strict=True):
                self._source.fill(name, joint[end - count : end])
            self._matrices[names] = joint
        return self._matrices[names]

    def _embedded(self, token: Token) -> F32:
        """The embedding of a token, [1, hidden]; tied ones are rows of the kept lm_head."""
        if isinstance(token, bytes):
            return np.frombuffer(token, np.float32)[None]
        kept = self._matrices.get(("lm_head",)) if self.model.tied_embeddings else None
        return kept[token : token + 1] if kept is not None else self._source.tensor("embed", slice(token, token + 1))


def available_memory() -> int:
    """Bytes that processes can take without swapping, or half of the memory where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 if hasattr(os, "sysconf") else 4 << 30
