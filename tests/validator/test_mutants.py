"""A handful of the validator's mutants; all of them are run by hand (`tests.validator.long_checks edits`, recorded)."""

from __future__ import annotations

import pytest

from tests.validator.mutants import Mutant, mutants, outcome, source

QUICK = ("K is the meet of producers", "no write after write", "counters start at zero", "relaxed waits order")


def test_the_list_is_long_enough_and_fits_the_source() -> None:
    """Edits of the validator may leave single entries behind; then the list needs the same edit."""
    assert len(mutants()) >= 140
    for mutant in mutants():
        assert source(mutant)


@pytest.mark.turns(8)
@pytest.mark.parametrize("mutant", [m for m in mutants() if m.name in QUICK], ids=lambda m: m.name)
def test_mutants_are_killed(mutant: Mutant) -> None:
    assert outcome(mutant) in ("killed", "hung")
