"""What a judge asks a schedule to do, and what a run of it showed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.judges.choice import GREEDY, Drawing

MOST_ENDS = 4
"""End-of-text tokens that a kernel knows."""


@dataclass(frozen=True)
class Request:
    """texts: the given tokens of each sequence. drawing: of the first one; see `drawings`.
    start: position of the first token that runs; keys and values of
    those before it are put into the cache. launches: tokens of each launch, one after the other. starts: `start` of
    each sequence, where they are live. calls: of a slice of layers, the position of each launch, which is for one
    token and is given the hidden state of its number instead of a text. guesses: what stands behind the given tokens of
    the one text, for steps that accept what is right of it, or whose rows are a tree. parents: the row that each row
    behind the first one of that tree comes behind, for a launch of one step."""

    texts: tuple[tuple[int, ...], ...]
    launches: tuple[int, ...]
    start: int = 0
    ends: tuple[int, ...] = ()
    drawing: Drawing = GREEDY
    starts: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()
    guesses: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    @property
    def written(self) -> tuple[tuple[int, ...], ...]:
        """What stands in the prompt of each sequence."""
        return (self.texts[0] + self.guesses, *self.texts[1:])

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        """How each sequence's tokens are chosen: with parameters of its own, and every third takes the largest."""
        return tuple(GREEDY if s % 3 == 2 else _varied(self.drawing, s) for s in range(len(self.texts)))

    def first(self, sequence: int) -> int:
        """Position of the sequence's first token that runs."""
        return self.starts[sequence] if self.starts else self.start


@dataclass
class Shown:
    """After each launch: tokens i32 [count, vectors], logits f64 [vectors, vocab] of its last step, the words of the
    state; vectors are the tokens that a step reads. Of a slice of layers the hidden state, f64 [hidden], or in its
    place the logits, f64 [vocab].

    caches: keys and values after the last one, f64 [layers, batch, kv_heads, context, head_dim], or None where the
    buffers have another shape, or there are none.
    """

    tokens: list[NDArray[np.int64]] = field(default_factory=list)
    logits: list[NDArray[np.float64]] = field(default_factory=list)
    state: list[dict[str, int]] = field(default_factory=list)
    hidden: list[NDArray[np.float64]] = field(default_factory=list)
    caches: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None


def _varied(drawing: Drawing, s: int) -> Drawing:
    if drawing == GREEDY:
        return GREEDY
    heat, k, p = drawing.temperature * (1 + s / 4), drawing.top_k, drawing.top_p
    return Drawing(heat, k + s if k else 0, p * max(1 - s / 20, 1 / 20) if p < 1 else 1.0, (drawing.seed + s) % 2**64)


class Refused(Exception):
    """The machine cannot run the schedule: it is too large, or not of a form that a host starts. Says nothing of it."""


class Broken(Exception):
    """The run itself showed a fault, before there was a token to look at.

    kind: hang, poison, bounds, chunk, registers, fault, or the name of an error.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message

    def __reduce__(self) -> tuple[type[Broken], tuple[str, str]]:
        return Broken, (self.kind, self.message)


def hidden_state(size: int, number: int) -> NDArray[np.float32]:
    """What a call of a slice is given: a function of its number."""
    return np.random.default_rng((size, number + 1000)).standard_normal(size).astype(np.float32)


def request_words(request: Request) -> NDArray[np.int32]:
    """The `request` buffer: given tokens of the first sequence, four ends (-1: none), given tokens of the others."""
    lengths = [len(text) for text in request.texts]
    ends = [*request.ends[:MOST_ENDS], *[-1] * (MOST_ENDS - len(request.ends))]
    return np.array([lengths[0], *ends, *lengths[1:]], np.int32)


def tree_words(parents: tuple[int, ...], rows: int) -> NDArray[np.int32]:
    """The `tree` buffer, two words a row: bit n of 64 if the way from the first row to this one leads through row n. Of
    rows without a parent each comes behind the one before it."""
    words = np.zeros((rows, 64), np.uint8)
    for row in range(1, rows):
        before = parents[row - 1] if row <= len(parents) else row - 1
        words[row] = words[before]
        words[row, before] = 1
    return np.packbits(words, axis=1, bitorder="little").view(np.int32).reshape(-1)


def state_words(request: Request, epoch: int = 0) -> NDArray[np.int32]:
    """The `state` buffer: token of the first sequence, position, epoch, done, tokens of the others, where each has its
    own their positions, and the ends of those behind the first 32."""
    tokens = [text[request.first(s)] for s, text in enumerate(request.texts)]
    ends = [0] * (-(-len(tokens) // 32) - 1)
    return np.array([tokens[0], request.first(0), epoch, 0, *tokens[1:], *request.starts[1:], *ends], np.int32)


def state_of(words: NDArray[Any], sequences: int) -> dict[str, int]:
    names = ["token", "position", "epoch", "done", *(f"token {s}" for s in range(1, sequences))]
    ends = [f"done {n}" for n in range(1, -(-sequences // 32))]
    names += [f"position {s}" for s in range(1, len(words) - len(names) - len(ends) + 1)] + ends
    return dict(zip(names, (int(word) for word in words), strict=True))
