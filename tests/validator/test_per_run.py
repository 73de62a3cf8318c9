"""What an op says of several runs of a step at once is what it says of each alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk.validator.program.footprint import Differ, PerRun, per_run
from amk.validator.program.system import I64


def _outcome(work: Callable[[], Any]) -> Any:
    """Its result, or what it raises."""
    try:
        return work()
    except (ArithmeticError, ValueError, OverflowError) as error:
        return type(error)


@cache
def _kept(a: int, b: int) -> int:
    return a * 3 + b


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "divmod": lambda a, b: sum(divmod(a, b)),
    "neg": lambda a, _: -a,
    "min": min,
    "max": max,
    "less": lambda a, b: a + 1 if a < b else b,
    "at most": lambda a, b: a - 1 if a <= b else b,
    "more": lambda a, b: a + 2 if a > b else b,
    "at least": lambda a, b: a - 2 if a >= b else b,
    "equal": lambda a, b: 7 if a == b else a,
    "unequal": lambda a, b: 9 if a != b else a,
    "true": lambda a, b: b if a else a - 1,
    "range": lambda a, b: sum(range(a % 5, b % 7 + 1)),
    "key": lambda a, b: _kept(a, b),
    "gcd": lambda a, b: gcd(a % 100, b % 100),
    "int": lambda a, b: int(a) + b,
}
Program = list[tuple[str, int, int]]


def _run(program: Program, inputs: list[int]) -> tuple[int, ...]:
    values = list(inputs)
    for name, a, b in program:
        values.append(OPERATIONS[name](values[a % len(values)], values[b % len(values)]))
    return tuple(values)


def _together(program: Program, columns: list[I64]) -> list[tuple[int, ...]]:
    """Of each run, evaluated for groups that go the same way."""
    found: dict[int, tuple[int, ...]] = {}
    left = [np.arange(len(columns[0]))]
    while left:
        those = left.pop()
        try:
            values: list[Any] = list(_run(program, [*(per_run(column[those]) for column in columns), 3, -2]))
        except Differ as differ:
            assert len(np.unique(differ.labels)) > 1
            left += [those[differ.labels == label] for label in np.unique(differ.labels)]
            continue
        for n, worker in enumerate(those.tolist()):
            found[worker] = tuple(int(v.values[n]) if isinstance(v, PerRun) else v for v in values)
    return [found[worker] for worker in range(len(columns[0]))]


@pytest.mark.turns(4)
@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.integers(0, 9)), max_size=9),
    st.integers(1, 8).flatmap(
        lambda n: st.lists(
            st.lists(st.one_of(st.integers(-3, 12), st.integers(-(2**62), 2**62)), min_size=n, max_size=n),
            min_size=2,
            max_size=3,
        )
    ),
)
def test_integers_of_runs_are_computed_as_those_of_each(program: Program, columns: list[list[int]]) -> None:
    arrays = [np.array(column, np.int64) for column in columns]
    alone = _outcome(lambda: [_run(program, [*each, 3, -2]) for each in zip(*columns, strict=True)])
    together = _outcome(lambda: _together(program, arrays))
    assert together == alone


def test_a_result_that_leaves_64_bits_is_that_of_each() -> None:
    columns = [np.array([2**61, 1, 2**61]), np.array([2**61, 2, 4])]
    program = [("mul", 0, 1), ("add", 4, 0), ("add", 0, 0), ("add", 6, 6)]
    assert _together(program, columns)[0][4:] == (2**122, 2**122 + 2**61, 2**62, 2**63)
    assert _together(program, columns)[1][4:] == (2, 3, 2, 4)
