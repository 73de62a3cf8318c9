"""What each kind of order may vouch for, on two nodes of two workers: a write must be visible, a read only over."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from amk.adversary.system_builder import SystemBuilder
from amk.validator.memory.composition import NOTHING, Accesses, Blocking, accesses
from amk.validator.order.intervals import Ordering
from amk.validator.program.system import I64, READ, WRITE, Bools

BUFFER = 0


class Line:
    """Nodes 0 and 1 run in this order; whether that is guaranteed is `sure`."""

    def __init__(self, sure: bool) -> None:
        build = SystemBuilder()
        for _ in range(2):
            build.event(build.agent())
        self.sure, self.system = sure, build.build()

    def placed(self, numbers: I64) -> I64:
        return numbers

    def precedes(self, before: I64, after: I64) -> Bools:
        return (before < after) & self.sure


def line(sure: bool) -> Ordering:
    return cast(Ordering, Line(sure))


def in_order(rows: I64, tagged: list[int]) -> Accesses:
    return accesses(rows, line(True).placed(rows[:, 0]), tagged, (NOTHING, NOTHING))


def touched(first: int, second: int) -> Any:
    """(node, buffer, kind, lo, hi, value, delta): both touch the same four bytes."""
    return np.array([[0, BUFFER, first, 0, 4, 0, 0], [1, BUFFER, second, 0, 4, 0, 0]], np.int64)


@pytest.mark.parametrize(
    ("first", "time", "fence", "racy", "unseen"),
    [
        (WRITE, True, True, False, False),
        (WRITE, True, False, False, True),  # over before the read starts, but nothing makes it visible
        (WRITE, False, False, True, True),
        (READ, True, False, False, False),  # a read leaves nothing to see
        (READ, False, False, True, True),
    ],
)
def test_a_write_must_be_visible_and_a_read_over(first: int, time: bool, fence: bool, racy: bool, unseen: bool) -> None:
    rows = touched(first, READ if first == WRITE else WRITE)
    races, hidden = in_order(rows, []).unseen(line(time), line(fence))
    assert (races.racy, hidden.racy) == (racy, unseen)


@pytest.mark.parametrize(
    ("first", "words", "relaxed_waits", "early"),
    [
        (READ, True, False, False),
        (READ, False, True, False),
        (READ, False, False, True),  # the word may be gone before its reader has looked
        (WRITE, False, False, False),  # the reader waits for this one
    ],
)
def test_words_are_kept_until_they_are_found(first: int, words: bool, relaxed_waits: bool, early: bool) -> None:
    rows = touched(first, READ if first == WRITE else WRITE)
    blocking = Blocking(line(words), lambda: line(relaxed_waits))
    assert in_order(rows, [BUFFER]).overwritten(blocking).racy == early
    assert (blocking.with_relaxed_waits is not None) == (first == READ and not words)


def test_plain_bytes_are_nobodys_words() -> None:
    blocking = Blocking(line(False), lambda: line(False))
    assert not in_order(touched(READ, WRITE), []).overwritten(blocking).racy
