"""Cases of tests that take turns: some at every commit, all of them in as many commits as there are turns."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import commits, is_in_turn, others_in_turn


@given(st.integers(0, 500), st.integers(1, 9), st.integers(0, 10_000))
def test_as_many_commits_as_turns_run_a_case_once(case: int, turns: int, first: int) -> None:
    assert sum(is_in_turn(case, turns, commit) for commit in range(first, first + turns)) == 1


@given(st.integers(2, 9), st.integers(0, 10_000))
def test_a_test_of_as_many_cases_as_turns_runs_one_at_every_commit(turns: int, commit: int) -> None:
    assert sum(is_in_turn(case, turns, commit) for case in range(turns)) == 1


def _asked(*names: str, turns: int = 2) -> list[Any]:
    """Items of these names, marked unless they begin with a file `all`."""
    mark = SimpleNamespace(args=(turns,))
    return [
        SimpleNamespace(nodeid=name, get_closest_marker=lambda _, name=name: None if name.startswith("all") else mark)
        for name in names
    ]


def _left(items: list[Any], commit: int) -> set[str]:
    later = others_in_turn(cast(Any, items), commit)
    return {item.nodeid for item in items} - {item.nodeid for item in later}


def test_each_case_is_run_once_in_as_many_commits_as_turns() -> None:
    names = ("f::a[1]", "f::one", "f::a[2]", "f::a[3]", "g::alone", "g::b[x]", "g::b[y]")
    items = _asked(*names, "all::b")
    runs = [_left(items, commit) for commit in (7, 8)]
    assert runs[0] & runs[1] == {"all::b"} and runs[0] | runs[1] == {*names, "all::b"}
    assert {"f::a[1]", "f::a[3]"} <= runs[0] or {"f::a[1]", "f::a[3]"} <= runs[1]


def test_tests_of_one_case_are_spread_over_the_commits() -> None:
    items = _asked(*(f"f{n}::one" for n in range(300)), turns=3)
    assert all(80 < len(_left(items, commit)) < 120 for commit in range(3))


def test_a_file_that_is_asked_for_alone_is_run_whole() -> None:
    items = _asked("f::a[1]", "f::a[2]", "f::one", turns=3)
    assert all(_left(items, commit) == {"f::a[1]", "f::a[2]", "f::one"} for commit in range(3))


def test_a_clone_knows_its_commits() -> None:
    if not (Path(__file__).parents[1] / ".git").exists():
        pytest.skip("not a clone")
    assert commits() > 0
