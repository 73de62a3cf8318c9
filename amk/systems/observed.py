"""Whoever wants to know of verdicts as they are given: the pytest plugin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amk.systems.verdict import Verdict

_LISTS: Final[list[list[Verdict]]] = []


@contextmanager
def observed() -> Iterator[list[Verdict]]:
    """The verdicts that `tell` is told of meanwhile."""
    mine: list[Verdict] = []
    _LISTS.append(mine)
    try:
        yield mine
    finally:
        del _LISTS[next(k for k, one in enumerate(_LISTS) if one is mine)]


def tell(verdict: Verdict) -> Verdict:
    for mine in _LISTS:
        mine.append(verdict)
    return verdict
