"""An answer of a schedule that goes on from request to request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from amk.engine.backends.room import Token
from amk.schedule_ir.sampling import Sampling


class Launches(Protocol):
    """Tokens in lists of those that are there. `close`: nothing runs any more."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> list[int]: ...
    def close(self) -> None: ...


class Run:
    """A text that is being continued, for as long as each request asks for what comes next in it."""

    def __init__(self, launches: Launches, text: Sequence[Token], sampling: Sampling, eos: Sequence[int]) -> None:
        self._launches, self._text, self._sampling, self._eos = launches, list(text), sampling, tuple(eos)
        self._tokens: list[int] = []
        self._ended = False

    def goes_on(self, tokens: Sequence[Token], sampling: Sampling, eos: Sequence[int]) -> bool:
        """Does the request ask for what comes next, with tokens left to give?"""
        if self._ended or (self._sampling, self._eos) != (sampling, tuple(eos)) or list(tokens) != self._text:
            return False
        if not self._tokens:
            self._tokens = next(self._launches, [])
        return bool(self._tokens)

    def next(self, most: int) -> list[int]:
        """1 to `most` tokens, none after one that ends the text."""
        found = self._tokens or next(self._launches)
        end = min(most, next((at + 1 for at, token in enumerate(found) if token in self._eos), len(found)))
        tokens, self._tokens = found[:end], found[end:]
        self._text += tokens
        return tokens

    def close(self) -> None:
        self._ended = True
        self._launches.close()
