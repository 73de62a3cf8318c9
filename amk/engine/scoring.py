"""How probable continuations of a text are; the prefixes that they share are computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from amk.engine.backend import Backend
from amk.engine.choice import log_softmax
from amk.engine.completion import Score
from amk.engine.prefix_tree import PrefixTree
from amk.engine.room import Token, check_room
from amk.schedule_ir.model_spec import ModelSpec

MOST_NODES = 256
"""Tokens of continuations that are computed in one pass: their logits are in memory together."""


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
        tree = PrefixTree(continuations[index][:-1] for index in group)
        logits = backend.branches(text, tree.tokens, tree.parents)
        for index in group:
            tokens = continuations[index]
            rows = logits[[0, *(node + 1 for node in tree.path(tokens[:-1]))]]
            table = log_softmax(rows)[np.arange(len(tokens)), list(tokens)]
            greedy = bool((rows.argmax(axis=-1) == tokens).all())
            found[index] = Score(tuple(tokens), tuple(table.tolist()), greedy)
    return [found[index] for index in range(len(continuations))]


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
