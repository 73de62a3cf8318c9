"""Cases of tests that take turns: some at every commit, all of them in as many commits as there are turns."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import commits, is_in_turn


@given(st.integers(0, 500), st.integers(1, 9), st.integers(0, 10_000))
def test_as_many_commits_as_turns_run_a_case_once(case: int, turns: int, first: int) -> None:
    assert sum(is_in_turn(case, turns, commit) for commit in range(first, first + turns)) == 1


@given(st.integers(2, 9), st.integers(0, 10_000))
def test_a_test_of_as_many_cases_as_turns_runs_one_at_every_commit(turns: int, commit: int) -> None:
    assert sum(is_in_turn(case, turns, commit) for case in range(turns)) == 1


def test_a_clone_knows_its_commits() -> None:
    if not (Path(__file__).parents[1] / ".git").exists():
        pytest.skip("not a clone")
    assert commits() > 0
