"""Sequences of tokens as a tree of their prefixes, so that what they share is computed, or allowed, once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

ROOT = -1


class PrefixTree:
    """A node for each distinct prefix that is not empty; the empty one is ROOT.

    tokens, parents: of every node; a parent comes before its children. Cost: one step a token of the sequences.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._children: dict[int, dict[int, int]] = {ROOT: {}}
        self._ends: set[int] = set()
        for sequence in sequences:
            node = ROOT
            for token in sequence:
                node = self._child(node, token)
            self._ends.add(node)

    def path(self, sequence: Sequence[int]) -> list[int]:
        """The nodes of its prefixes, the shortest first. KeyError for one that is not in the tree."""
        nodes, node = [], ROOT
        for token in sequence:
            node = self._children[node][token]
            nodes.append(node)
        return nodes

    def behind(self, node: int, token: int) -> int | None:
        """The node of this token behind a node, or ROOT; None if there is none."""
        return self._children[node].get(token)

    def followers(self, sequence: Sequence[int]) -> tuple[list[int], bool]:
        """Tokens that may come behind a prefix, and whether it is a whole sequence."""
        node = self.path(sequence)[-1] if sequence else ROOT
        return list(self._children[node]), node in self._ends

    def _child(self, node: int, token: int) -> int:
        children = self._children[node]
        if token not in children:
            children[token] = len(self.tokens)
            self._children[children[token]] = {}
            self.tokens.append(token)
            self.parents.append(node)
        return children[token]


class TreeMask:
    """A mask that allows exactly the sequences of a tree, each with an end-of-text token behind it."""

    def __init__(self, tree: PrefixTree, vocab: int, eos: Sequence[int]) -> None:
        self._tree, self._vocab, self._eos = tree, vocab, list(eos)

    def __call__(self, answer: Sequence[int]) -> NDArray[np.bool_]:
        allowed = np.zeros(self._vocab, np.bool_)
        if answer and answer[-1] in self._eos:
            allowed[self._eos] = True
            return allowed
        tokens, whole = self._tree.followers(answer)
        allowed[tokens] = True
        allowed[self._eos] |= whole
        return allowed
