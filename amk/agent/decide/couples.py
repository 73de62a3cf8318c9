"""Pairs of knob values that the gate refuses, where either value passes beside others.

So many warps may pass, and two workers an SM, and both together need more registers than there are. Of the pairs that
no proposal that passed has, the one that most refusals for a reason have explains these, the one that most of the
others have explains those, and so on. A wrong explanation is given up when the true one, which is not avoided then, has
more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from amk.planner.space import Value

REFUSALS = 3
"""Refusals for one reason after which proposers avoid what the refused had in common."""

MEMORY = 100
"""Latest refusals for one reason that are looked at."""

Item = tuple[str, Value]
Point = frozenset[Item]


@dataclass
class Couples:
    """refused: the refused points by the codes of their refusal. passed: those that passed."""

    refused: dict[tuple[str, ...], list[Point]] = field(default_factory=dict)
    passed: list[Point] = field(default_factory=list)

    def blocked(self, pairs: Collection[Point]) -> Iterator[Point]:
        """The pairs that explain refusals that none of the other `pairs` explains."""
        frequent = Counter(item for point in self.passed for item in point)
        for points in self.refused.values():
            left = [point for point in points[-MEMORY:] if not any(values <= point for values in pairs)]
            while (pair := self._explaining(left, frequent)) is not None:
                yield pair
                left = [point for point in left if not pair <= point]

    def _explaining(self, points: Sequence[Point], frequent: Counter[Item]) -> Point | None:
        """The pair that most of `points` have and none that passed; of equals the one whose values passed least."""
        ordered = (sorted(point, key=lambda item: item[0]) for point in points)
        counts = Counter(pair for point in ordered for pair in combinations(point, 2))
        seen = [(-count, frequent[one] + frequent[other], one, other) for (one, other), count in counts.items()]
        for count, _, one, other in sorted(seen, key=lambda each: (*each[:2], each[2][0], each[3][0])):
            if -count < REFUSALS:
                return None
            pair = frozenset((one, other))
            if not any(pair <= point for point in self.passed):
                return pair
        return None
