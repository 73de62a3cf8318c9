"""Some seconds of damaged schedules (hours by hand: `tests.validator.long_checks fuzz`, recorded)."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.adversarial.fuzz import fuzzed, outcome


def test_damaged_schedules_are_refused_or_judged() -> None:
    rng, seen = Random(1), Counter[str]()
    for _ in range(150):
        found = outcome(fuzzed(rng))
        assert not found.startswith("!"), found
        seen[found] += 1
    assert seen["refused"] > 20 and seen["UNSAFE"] > 5 and seen["SAFE"] > 5
