"""Slices of all small systems (all of them by hand: `tests.validator.long_checks exhaustive`)."""

from __future__ import annotations

import numpy as np
import pytest

from amk.judges.explore import explore
from tests.validator.batches import differences
from tests.validator.compiled_explorer import compiler
from tests.validator.exhaustive import KINDS, SHAPES, batches, canonical, digits, joined, number_of, swapped


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
def test_a_slice_of_all_small_systems_agrees_with_exploration() -> None:
    systems = 0
    for _, batch in batches(1234):
        found, counts = differences(batch)
        assert not found
        systems += counts["systems"]
    assert systems > 5_000


def test_every_class_has_one_representative() -> None:
    """On a random sample: exactly one of the images under all exchanges is kept."""
    rng = np.random.default_rng(3)
    for shape in SHAPES:
        for number in rng.integers(0, KINDS**4, 200).tolist():
            kinds = digits(np.array([number]))
            orders = [(0, 1, 2, 3)]
            if shape == (2, 2):
                orders.append((2, 3, 0, 1))
            if shape == (2, 1, 1):
                orders.append((0, 1, 3, 2))
            images = {int(number_of(k[:, list(o)])[0]) for o in orders for k in (kinds, swapped(kinds))}
            assert len(canonical(shape, np.array(sorted(images)))) == 1
    assert swapped(swapped(np.arange(KINDS))).tolist() == list(range(KINDS))


def test_kinds_mean_what_they_say() -> None:
    """An event that waits for counter 1 >= 1 and writes, after one that signals counter 1 and reads."""
    taker, giver = 4 * 9 + 2, 2 * 3 + 1
    batch = joined((2, 2), number_of(np.array([[giver, 0, taker, 0]])))
    truth = explore(batch.system)
    assert not truth.deadlock and not truth.races
    alone = explore(joined((2, 2), number_of(np.array([[1, 0, taker, 0]]))).system)
    assert alone.deadlock
