"""Guesses of what comes next from the text itself: what stood behind its last tokens when they came before."""

from __future__ import annotations

from collections.abc import Sequence

from amk.engine.backends.backend import common
from amk.engine.backends.room import Token
from amk.schedule_ir.sampling import GREEDY, Sampling

LONGEST = 3
"""Last tokens that are looked for; fewer where so many did not come before."""
PLACES = 4
"""Of equal tokens that are remembered: the latest ones that different tokens followed."""


class Lookup:
    """Remembers the last text, so that a longer one costs its new tokens.

    shortest: tokens that have to be equal at least. What one token brings is seldom right.
    """

    def __init__(self, shortest: int) -> None:
        self._shortest = shortest
        self._text: list[Token] = []
        self._behind: dict[tuple[Token, ...], list[int]] = {}

    def guess(self, tokens: Sequence[Token], count: int, sampling: Sampling = GREEDY) -> list[int]:
        """At most `count` tokens that may follow, from the latest place with the most equal tokens; none without one.

        Where the place is so near that the text ends before `count` tokens, they are repeated. sampling: no matter.
        """
        return next(iter(self.ways(tokens, count, 1)), [])

    def ways(self, tokens: Sequence[Token], count: int, most: int) -> list[list[int]]:
        """As `guess`, in at most `most` ways that differ in their first token: of the places with the most equal
        tokens, the latest first, and then of those with fewer."""
        self._learn(tokens)
        size, found = len(tokens), list[list[int]]()
        lengths = range(min(LONGEST, size), self._shortest - 1, -1)
        for at in (at for length in lengths for at in self._behind.get(tuple(tokens[size - length :]), ())):
            if len(found) == most:
                break
            way = [tokens[at + n % (size - at)] for n in range(count)]
            end = next((n for n, token in enumerate(way) if not isinstance(token, int)), count)
            if end and all(way[0] != other[0] for other in found):
                found.append([int(token) for token in way[:end]])
        return found

    def _learn(self, tokens: Sequence[Token]) -> None:
        """The places behind every run of tokens, but for the last ones, which nothing follows."""
        known = common(self._text, tokens)
        if known < len(self._text):
            self._behind.clear()
            known = 0
        for end in range(max(known, 1), len(tokens)):
            for length in range(self._shortest, min(LONGEST, end) + 1):
                places = self._behind.setdefault(tuple(tokens[end - length : end]), [])
                places[:] = [end, *(at for at in places if tokens[at] != tokens[end])][:PLACES]
        self._text = list(tokens)
