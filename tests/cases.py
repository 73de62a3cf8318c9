"""How many drawn cases a test looks at: few in every run of the tests, all of them with `pytest --long`.

A test whose cases are each expensive is marked `turns(n)`: every n-th case is run at one commit, the next ones at the
next commit, so that n commits in a row have run all of them. Tests of one case, such as a whole search or a compiled
kernel, take turns with those of their file that have the same mark. `pytest --every-turn` runs all.
"""

import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

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


@cache
def commits() -> int:
    """How many commits the tree has behind it; 0 outside of a clone."""
    command = ["git", "rev-list", "--count", "HEAD"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(found.stdout) if found.returncode == 0 else 0


def is_in_turn(case: int, turns: int, commit: int) -> bool:
    """Whether this case of a test is run at that commit."""
    return (case + commit) % turns == 0


def others_in_turn(items: Sequence[pytest.Item], commit: int) -> list[pytest.Item]:
    """What is marked `turns` and in turn at other commits. A case or test that is asked for alone runs."""
    marked = [(item, mark.args[0]) for item in items if (mark := item.get_closest_marker("turns"))]
    cases = Counter(_test_of(item) for item, _ in marked)
    lists: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item, turns in marked:
        test = _test_of(item)
        lists[test if cases[test] > 1 else test.partition("::")[0], turns].append(item)
    return [
        item
        for (_, turns), alike in lists.items()
        for number, item in enumerate(alike)
        if len(alike) > 1 and not is_in_turn(number, turns, commit)
    ]


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
