"""What continues a text: here the forward pass on the CPU; `schedule_backend` has schedules.

A backend is asked with all tokens of a text, every time. It keeps the keys and values of the last text that it read and
reads only what differs from it, so a conversation costs its new tokens, and several texts may take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from amk.engine.backends.choice import choose
from amk.engine.backends.forward import ForwardPass
from amk.engine.backends.room import Token, check_room
from amk.schedule_ir.sampling import Sampling
from amk.weights.bfloat import F32


class Backend(Protocol):
    """context: positions of the cache. cached: tokens of the last request that were not read anew."""

    context: int

    @property
    def cached(self) -> int: ...

    def logits(self, tokens: Sequence[Token]) -> F32:
        """f32 [vocab] after the last of `tokens`. AMK014 if they are none, unknown, or more than the context."""

    def every(self, tokens: Sequence[Token], first: int = 0) -> F32:
        """f32 [len(tokens) - first, vocab]: logits after token `first` and each that follows."""

    def states(self, tokens: Sequence[Token]) -> F32:
        """f32 [tokens, hidden size]: what lm_head is multiplied with. AMK015 where it cannot be told."""

    def embeddings(self, tokens: Sequence[int]) -> F32:
        """f32 [tokens, hidden size], the model's. AMK014 for an unknown token, AMK015 where they cannot be told."""

    def branches(self, tokens: Sequence[Token], nodes: Sequence[int], parents: Sequence[int]) -> F32:
        """f32 [1 + len(nodes), vocab]: logits after `tokens`, and after it and the path to each node of a tree.

        parents: of each node the number of one before it, or -1 for a node that follows `tokens`.
        """

    def extend(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        """The tokens that follow, 1 to `most` of them; none after one of `eos`."""

    def free(self) -> None: ...


def common(left: Sequence[Token], right: Sequence[Token]) -> int:
    """Length of the longest common prefix."""
    length = min(len(left), len(right))
    if list(left[:length]) == list(right[:length]):
        return length
    return next(at for at in range(length) if left[at] != right[at])


class ForwardBackend:
    """The forward pass; tokens are chosen on the host."""

    rows = None

    def __init__(self, forward: ForwardPass) -> None:
        self._forward, self.context = forward, forward.context
        self._read: list[Token] = []
        self.cached = 0

    def logits(self, tokens: Sequence[Token]) -> F32:
        return self._continued(tokens, len(tokens) - 1, self._forward.read)

    def every(self, tokens: Sequence[Token], first: int = 0) -> F32:
        return self._continued(tokens, first, partial(self._forward.last, count=len(tokens) - first))

    def states(self, tokens: Sequence[Token]) -> F32:
        return self._continued(tokens, 0, self._forward.states)

    def embeddings(self, tokens: Sequence[int]) -> F32:
        check_room(tokens, self._forward.model.vocab, len(tokens))
        return self._forward.embeddings(tokens)

    def branches(self, tokens: Sequence[Token], nodes: Sequence[int], parents: Sequence[int]) -> F32:
        after = self.logits(tokens)[None]
        return np.concatenate([after, self._forward.branches(nodes, parents)]) if nodes else after

    def choices(self, tokens: Sequence[Token], first: int, sampling: Sampling) -> Iterator[int]:
        """The tokens that are chosen behind token `first` and behind each that follows it."""
        for pos, row in enumerate(self.every(tokens, first), first):
            yield choose(row, sampling, pos)

    def extend(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        return list(self.choices(tokens, len(tokens) - 1, sampling))

    def free(self) -> None:
        """Nothing is held outside the process."""

    def _continued(self, tokens: Sequence[Token], wanted: int, read: Callable[[Sequence[Token]], F32]) -> F32:
        """What `read` gives for the tokens that the cache does not hold, from `wanted` on at the latest."""
        model = self._forward.model
        check_room(tokens, model.vocab, self.context, model.hidden)
        self.cached = min(common(self._read, tokens), wanted)
        self._forward.keep(self.cached)
        self._read = self._read[: self.cached]  # what stands if reading is interrupted
        found = read(tokens[self.cached :])
        self._read = list(tokens)
        return found
