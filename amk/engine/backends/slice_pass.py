"""The model as two schedules, all layers and the output head, on any device that runs schedules: hidden states come out
of it, and embeddings go in. It is read like the forward pass on the CPU.

For a token the host writes its embedding and position and launches the layers, which keep its keys and values, and
reads the state behind them. It launches the head where logits are asked for. Cost: a launch and a wait for each token
of each schedule, so this is not how to decode fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from amk.engine.backends.backend import common
from amk.engine.backends.forward import Part
from amk.engine.backends.room import Token
from amk.engine.backends.text_cache import TextCache
from amk.interpreter.decoder import normed
from amk.models.row_groups import TensorSource
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import F32


class SliceEngine(Protocol):
    """What runs a slice of a model."""

    schedule: Schedule

    def through(self, hidden: F32, position: int) -> F32:
        """One token: the hidden state behind the slice of the one before it, or logits."""

    def free(self) -> None: ...


class SlicePass:
    """The model, with one text, whose keys and values are in the memory of `layers`. Not thread safe."""

    caches = False

    def __init__(self, layers: SliceEngine, head: SliceEngine, source: TensorSource) -> None:
        part = layers.schedule.model
        self.model = part.model_copy(update={"slice": None})
        self.context = layers.schedule.kv.context
        self._layers, self._head, self._source = layers, head, source
        self._vectors: dict[str, F32] = {}

    def text(self) -> TextCache:
        """A text without tokens, of which only the length is kept."""
        return TextCache(self.model, self.context)

    def read(self, parts: Sequence[Part]) -> list[F32]:
        """As the forward pass on the CPU does, of the one text that there is."""
        (part,) = parts
        states = self._through(part)[len(part.tokens) - part.outputs :]
        part.text.length += part.appended
        if part.states:
            return [normed(self.model, self.model.graph.final_norm, states, self._vector)]
        logits = [self._head.through(state, 0) for state in states]
        return [np.array(logits, np.float32).reshape(len(states), self.model.vocab)]

    def embeddings(self, tokens: Sequence[Token]) -> F32:
        """f32 [tokens, hidden size]: what enters the first layer."""
        return np.concatenate([self._embedded(token) for token in tokens])

    def free(self) -> None:
        self._layers.free()
        self._head.free()

    def _through(self, part: Part) -> F32:
        """What leaves the last layer for the tokens, [tokens, hidden size].

        Nodes of a tree at one depth have one position: what the path to a node needs is written again where another
        node has taken its place, and so are, in the end, those that stay.
        """
        entering, length = self.embeddings(part.tokens), part.text.length
        parents = range(-1, len(part.tokens) - 1) if part.parents is None else part.parents
        states, there = np.empty_like(entering), list[int]()
        for node in (*range(len(parents)), part.appended - 1):
            path, at = list[int](), node
            while at >= 0:
                path.insert(0, at)
                at = parents[at]
            kept = common(there, path)
            for depth in range(kept, len(path)):
                states[path[depth]] = self._layers.through(entering[path[depth]], length + depth)
            there = path if kept < len(path) else there
        return states

    def _vector(self, name: str) -> F32:
        if name not in self._vectors:
            self._vectors[name] = self._source.tensor(name)
        return self._vectors[name]

    def _embedded(self, token: Token) -> F32:
        """The embedding of a token, [1, hidden]."""
        if isinstance(token, bytes):
            return np.frombuffer(token, np.float32)[None]
        return self._source.tensor("embed", slice(token, token + 1))
