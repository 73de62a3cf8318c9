"""What continues a text: here the forward pass on the CPU; `schedule_backend` has schedules.

A backend is asked with all tokens of a text, every time. It keeps the keys and values of the last text that it read and
reads only what differs from it, so a conversation costs its new tokens, and several texts may take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from amk.engine.choice import choose
from amk.engine.forward import ForwardPass
from amk.engine.room import check_room
from amk.schedule_ir.bfloat import F32
from amk.schedule_ir.sampling import Sampling


class Backend(Protocol):
    """context: positions of the cache. cached: tokens of the last request that were not read anew."""

    context: int
    cached: int

    def logits(self, tokens: Sequence[int]) -> F32:
        """f32 [vocab] after the last of `tokens`. AMK014 if they are none, unknown, or more than the context."""

    def every(self, tokens: Sequence[int], first: int = 0) -> F32:
        """f32 [len(tokens) - first, vocab]: logits after token `first` and each that follows."""

    def extend(self, tokens: Sequence[int], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        """The tokens that follow, 1 to `most` of them; none after one of `eos`."""

    def free(self) -> None: ...


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    length = min(len(left), len(right))
    if list(left[:length]) == list(right[:length]):
        return length
    return next(at for at in range(length) if left[at] != right[at])


class ForwardBackend:
    """The forward pass; tokens are chosen on the host."""

    def __init__(self, forward: ForwardPass) -> None:
        self._forward, self.context = forward, forward.context
        self._read: list[int] = []
        self.cached = 0

    def logits(self, tokens: Sequence[int]) -> F32:
        return self._continued(tokens, len(tokens) - 1, every=False)

    def every(self, tokens: Sequence[int], first: int = 0) -> F32:
        return self._continued(tokens, first, every=True)[first - len(tokens) :]

    def extend(self, tokens: Sequence[int], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        return [choose(self.logits(tokens), sampling, len(tokens) - 1)]

    def free(self) -> None:
        """Nothing is held outside the process."""

    def _continued(self, tokens: Sequence[int], wanted: int, every: bool) -> F32:
        check_room(tokens, self._forward.model.vocab, self.context)
        self.cached = min(common(self._read, tokens), wanted)
        self._forward.keep(self.cached)
        self._read = self._read[: self.cached]  # what stands if reading is interrupted
        found = self._forward.read(tokens[self.cached :], every)
        self._read = list(tokens)
        return found
