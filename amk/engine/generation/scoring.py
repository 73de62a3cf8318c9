"""How probable continuations of a text are, and a text itself; prefixes that continuations share are computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral

import numpy as np

from amk.engine.backends.backend import Backend
from amk.engine.backends.choice import log_softmax
from amk.engine.backends.room import Token, check_room
from amk.engine.generation.completion import Perplexity, Score
from amk.engine.generation.prefix_tree import PrefixTree
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError, Diagnostic
from amk.weights.bfloat import F32

MOST_NODES = 256
"""Tokens of continuations that are computed in one pass: their logits are in memory together."""
WINDOW = 1024
"""Tokens of a window of a long text, unless told otherwise."""


def scores_of(
    backend: Backend, spec: ModelSpec, text: Sequence[Token], continuations: Sequence[Sequence[int]]
) -> list[Score]:
    """The score of each continuation behind `text`. AMK014 for one that is empty, too long, or has an unknown token.

    Continuations are taken in the order of their tokens, so that those with a common prefix are computed together.
    """
    check_room(text, spec.vocab, backend.context, spec.hidden)
    for tokens in continuations:
        check_room(tokens, spec.vocab, backend.context - len(text) + 1)  # the last one is not read
    found: dict[int, Score] = {}
    order = sorted(range(len(continuations)), key=lambda index: tuple(continuations[index]))
    for group in _groups(order, continuations):
        if len(group) == 1:
            found[group[0]] = _rest(backend, text, continuations[group[0]])
            continue
        tree = PrefixTree(continuations[index][:-1] for index in group)
        logits = backend.branches(text, tree.tokens, tree.parents)
        for index in group:
            tokens = continuations[index]
            found[index] = _score(tokens, logits[[0, *(node + 1 for node in tree.path(tokens[:-1]))]])
    return [found[index] for index in range(len(continuations))]


def perplexity_of(
    backend: Backend, spec: ModelSpec, tokens: Sequence[int], window: int | None, stride: int | None
) -> Perplexity:
    """Of a text. window, stride: see `LanguageModel.perplexity`, as for AMK014 and AMK015."""
    check_room(tokens, spec.vocab, max(len(tokens), 1))
    for name, value in (("window", window), ("stride", stride)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise AmkError(Diagnostic("AMK015", f"{name} is {value!r}, it must be a whole number"))
    window = min(WINDOW, backend.context) if window is None else window
    stride = max(window // 2, 1) if stride is None else stride
    if len(tokens) < 2:
        raise AmkError(Diagnostic("AMK014", "the text has one token, which no other one predicts"))
    if not 2 <= window <= backend.context:
        message = f"a window has {window:,} tokens, it must have 2 to {backend.context:,}, the positions of the cache"
        raise AmkError(Diagnostic("AMK015", message))
    if not 1 <= stride <= window:
        raise AmkError(Diagnostic("AMK015", f"the stride is {stride:,}, it must be 1 to {window:,}, the window"))
    logprobs: list[float] = []
    for begin, first, end in _windows(len(tokens), window, stride):
        logprobs += _rest(backend, tokens[begin:first], tokens[first:end]).logprobs
    return Perplexity(sum(logprobs), len(logprobs), window, stride)


def _windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, first, end) of every window: it has the tokens from begin to end and predicts those from `first` on."""
    done = 0
    for begin in range(0, count, stride):
        end = min(begin + window, count)
        first = max(done, begin + 1)
        if first < end:
            yield begin, first, end
        if end == count:
            return
        done = end


def _rest(backend: Backend, text: Sequence[Token], tokens: Sequence[int]) -> Score:
    """The score of the tokens behind `text`, whose logits are in memory for MOST_NODES of them at a time."""
    parts = []
    for at in range(0, len(tokens), MOST_NODES):
        some = tokens[at : at + MOST_NODES]
        before = [*text, *tokens[:at]]
        parts.append(_score(some, backend.every([*before, *some[:-1]], len(before) - 1)))
    logprobs = tuple(logprob for part in parts for logprob in part.logprobs)
    return Score(tuple(tokens), logprobs, all(part.greedy for part in parts))


def _score(tokens: Sequence[int], logits: F32) -> Score:
    """logits: f32 [len(tokens), vocab] before each of them."""
    table = log_softmax(logits)[np.arange(len(tokens)), list(tokens)]
    return Score(tuple(tokens), tuple(table.tolist()), bool((logits.argmax(axis=-1) == tokens).all()))


def _groups(order: Sequence[int], continuations: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Neighbours whose tokens are few enough for a pass; one that has too many by itself is alone."""
    group: list[int] = []
    size = 0
    for index in order:
        length = len(continuations[index])
        if group and size + length > MOST_NODES:
            yield group
            group, size = [], 0
        group.append(index)
        size += length
    if group:
        yield group
