"""How many drawn cases a test looks at: few in every run of the tests, all of them with `pytest --long`.

A test whose cases are each expensive is marked `turns(n)`: every n-th case is run at one commit, the next ones at the
next commit, so that n commits in a row have run all of them. A test of one case, such as a whole search, is run at
every n-th commit. `pytest --every-turn` runs all, and so does naming a single file.
"""

import subprocess
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar
from zlib import crc32

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
    """What is marked `turns` and in turn at other commits. Every test begins at a commit of its own, so that commits
    cost about the same. A file that is asked for alone is run whole."""
    if len({item.nodeid.partition("::")[0] for item in items}) == 1:
        return []
    cases: Counter[str] = Counter()
    found = []
    for item in items:
        if mark := item.get_closest_marker("turns"):
            test = item.nodeid.partition("[")[0]
            if not is_in_turn(crc32(test.encode()) + cases[test], mark.args[0], commit):
                found.append(item)
            cases[test] += 1
    return found
