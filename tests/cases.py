"""How many drawn cases a test looks at: few in every run of the tests, all of them with `pytest --long`."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_long = False


def look_at_all() -> None:
    """Called before test modules are imported, which ask at their top."""
    global _long
    _long = True


def cases(few: int, whole: int) -> int:
    """`few` must show every kind of case that the test counts."""
    return whole if _long else few


def one_in_turn(kinds: Sequence[T], number: int) -> Sequence[T]:
    """What case `number` of a list is tried with: one of `kinds`, all of them with `--long`."""
    return kinds if _long else [kinds[number % len(kinds)]]
