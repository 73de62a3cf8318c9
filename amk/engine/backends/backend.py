"""What continues texts: `forward_backend` by the forward pass on the CPU, the others by a schedule.

A backend is asked with all tokens of a text, every time. It keeps the keys and values of the texts that it read last
and reads only what differs from them, so a conversation costs its new tokens, and more texts may take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from amk.engine.backends.room import Token
from amk.schedule_ir.sampling import Sampling
from amk.weights.bfloat import F32


class Writer(Protocol):
    """Writes keys and values of a text at position 0 and behind."""

    def __call__(self, place: Any, sequence: int) -> bool:
        """place: a `TextCache` with room for them, or an engine with a schedule, of whose batch it is this sequence.
        False, with nothing written, where it cannot write there. Whatever it started is done when it returns."""


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

    def lend(self, tokens: Sequence[Token], write: Writer) -> bool:
        """Let somebody else write the keys and values of the tokens to a cache, for a text that begins with them.

        False where `write` returns it or no cache is free. The first token is an `OfOneText` unless what is written is
        what amk would write.
        """

    def free(self) -> None: ...


def common(left: Sequence[Token], right: Sequence[Token]) -> int:
    """Length of the longest common prefix. By halves, as lists are compared faster than tokens one by one."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if list(left[low:middle]) == list(right[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
