"""Texts from a pass over the model, which is plain numpy or two schedules: tokens are chosen on the host.

Property: what a text gets does not depend on which others are computed beside it, nor on when they come and go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from amk.engine.backends.backend import Writer
from amk.engine.backends.choice import choose
from amk.engine.backends.forward import Part
from amk.engine.backends.room import Token, check_room
from amk.engine.backends.seats import Ask, Seat, Seats
from amk.engine.backends.text_cache import TextCache
from amk.models.model_spec import ModelSpec
from amk.schedule_ir.sampling import Sampling
from amk.weights.bfloat import F32

BLOCK = 256
"""Tokens of a prompt that are read at once; other texts wait for so many."""


@dataclass(eq=False)
class _Ask(Ask):
    """Logits after token `first` of the text and each that follows, or states; then those of a tree behind it.

    tree: its tokens, and of each the number of one before it, or -1.
    """

    states: bool = False
    tree: tuple[Sequence[int], Sequence[int]] = ((), ())
    rows: list[F32] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        return sum(map(len, self.rows)) == len(self.text) - self.first + len(self.tree[0])

    def part(self, text: TextCache) -> Part:
        """What comes next of it."""
        at = text.length
        tokens, end = self.text[at : at + BLOCK], min(at + BLOCK, len(self.text))
        wanted = max(0, min(len(tokens), end - self.first))
        nodes, parents = self.tree
        if end < len(self.text) or not nodes:
            return Part(text, tokens, wanted, self.states)
        last = len(tokens) - 1  # what is left of the text is the trunk of the tree
        behind = [*range(-1, last), *(last if parent < 0 else len(tokens) + parent for parent in parents)]
        return Part(text, [*tokens, *nodes], wanted + len(nodes), parents=behind)

    @property
    def whole(self) -> list[Token]:
        """The text, and the nodes behind it."""
        return [*self.text, *self.tree[0]]


class ModelPass(Protocol):
    """What `ForwardPass` and `SlicePass` do."""

    model: ModelSpec
    context: int
    caches: bool
    """Are keys and values of a text in its `TextCache`?"""

    def text(self) -> TextCache: ...
    def read(self, parts: Sequence[Part]) -> list[F32]: ...
    def embeddings(self, tokens: Sequence[Token]) -> F32: ...
    def free(self) -> None: ...


class ForwardBackend(Seats[_Ask]):
    """A `Backend` for as many texts at once as asked for; further ones wait for one to leave."""

    rows, trees = None, True
    keeps = True

    def __init__(self, forward: ModelPass, texts: int = 1) -> None:
        super().__init__(texts)
        self._forward, self.context = forward, forward.context
        self._texts = [forward.text() for _ in range(texts)]

    def logits(self, tokens: Sequence[Token]) -> F32:
        (found,) = self.every(tokens, len(tokens) - 1)
        return np.asarray(found, np.float32)

    def every(self, tokens: Sequence[Token], first: int = 0) -> F32:
        return self._rows(_Ask(list(tokens), first))

    def states(self, tokens: Sequence[Token]) -> F32:
        return self._rows(_Ask(list(tokens), 0, states=True))

    def embeddings(self, tokens: Sequence[int]) -> F32:
        check_room(tokens, self._forward.model.vocab, len(tokens))
        with self._turn:
            self._idle()
            return self._forward.embeddings(tokens)

    def branches(self, tokens: Sequence[Token], nodes: Sequence[int], parents: Sequence[int]) -> F32:
        return self._rows(_Ask(list(tokens), len(tokens) - 1, tree=(nodes, parents)))

    def choices(self, tokens: Sequence[Token], first: int, sampling: Sampling) -> Iterator[int]:
        """The tokens that are chosen behind token `first` and behind each that follows it."""
        for pos, row in enumerate(self.every(tokens, first), first):
            yield choose(row, sampling, pos)

    def extend(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        return list(self.choices(tokens, len(tokens) - 1, sampling))

    def lend(self, tokens: Sequence[Token], write: Writer) -> bool:
        def into(number: int) -> bool:
            text = self._texts[number]
            text.length = 0
            text.reserve(min(len(tokens) + BLOCK, self.context))
            return write(text, 0)

        return self._forward.caches and self._lend(tokens, into)

    def free(self) -> None:
        self._forward.free()

    def _rows(self, ask: _Ask) -> F32:
        check_room(ask.text, self._forward.model.vocab, self.context, self._forward.model.hidden)
        found = self._answer(ask).rows
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _compute(self, busy: Sequence[Seat[_Ask]]) -> None:
        asks = [seat.ask for seat in busy if seat.ask is not None]
        for seat in busy:
            self._texts[seat.number].length = len(seat.read)
        parts = [ask.part(self._texts[seat.number]) for seat, ask in zip(busy, asks, strict=True)]
        for seat, ask, rows in zip(busy, asks, self._forward.read(parts), strict=True):
            seat.read = ask.whole[: self._texts[seat.number].length]
            if len(rows):
                ask.rows.append(rows)
