"""When the last of many signals is given, by SMs that are not quite equal."""

from math import log, sqrt

import pytest

from amk.simulator.signals import Cell, Reached, latest


def test_the_last_of_equal_ones_is_late_however_they_are_grouped() -> None:
    whole = latest([(5.0, 128)], 0.1)
    assert whole == pytest.approx(5 + 0.1 * sqrt(2 * log(128)))
    assert latest([(5.0, 28), (5.0, 60), (5.0, 40)], 0.1) == pytest.approx(whole)


def test_those_that_are_due_early_have_no_part_in_it_and_those_a_little_early_a_small_one() -> None:
    alone = latest([(5.0, 4)], 0.1)
    assert latest([(1.0, 128), (5.0, 4)], 0.1) == pytest.approx(alone)
    assert alone < latest([(4.95, 128), (5.0, 4)], 0.1) < latest([(5.0, 132)], 0.1)


def test_one_sm_is_as_it_is() -> None:
    assert latest([(3.0, 1)], 0.1) == 3.0


def test_a_threshold_below_the_total_is_reached_by_the_earlier_signals() -> None:
    cell = Cell(waiters=[(7, 10), (8, 12)])
    assert cell.post(4.0, 1, 0, 8) == [] and cell.post(3.0, 2, 1, 1) == [7] and cell.post(9.0, 1, 2, 2) == [8]
    assert cell.total == 12 and not cell.waiters
    assert cell.reached(10, 0.0)[:2] == (4.0, 0) and cell.reached(11, 0.0)[:2] == (9.0, 2)


def test_a_threshold_of_nothing_is_reached_before_anybody_signals() -> None:
    assert Cell().reached(0, 1.0) == Reached(0.0, -1, 0.0)
