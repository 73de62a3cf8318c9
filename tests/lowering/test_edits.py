"""Edits of the device code by rule: enough of each class, each is one; read-back or emulator refuse these."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.lowering.edits.judge import SUBJECTS, all_edits, judge, texts
from tests.lowering.edits.rules import RULES
from tests.lowering.edits.run import SLICES, equivalent, sample

REFUSED = {
    "half the lanes: amk/cells.cuh": "AMK609",
    "loop of one pass: amk/cells.cuh": "AMK609",
    "next slot: amk/ring.cuh": "AMK609",
    "barrier left out: the emitted text": "AMK607",
    "strength left out: amk/sync.cuh": "AMK607",
    "comparison off by one: amk/ring.cuh": "emulator: late copy",
}
"""The first edit of a rule in a file, in the kernel with tagged words, and what refuses it."""


def test_every_rule_finds_something_to_edit() -> None:
    found = all_edits()
    rules = Counter(edit.name.split(":")[0] for _, edit in found)
    assert {rule.name for rule in RULES} == set(rules) and len(found) > 1000
    kinds = {kind.split(":")[0] for kind in Counter(edit.kind for _, edit in found)}
    assert kinds == {"synchronisation", "order", "data", "footprint", "arithmetic"}
    assert len({(edit.name, edit.new, names[0]) for names, edit in found}) == len(found)
    assert SLICES >= len(sample(found)) >= 150
    for names, edit in found:
        assert set(names) <= set(SUBJECTS)
        text = texts(names[0])[edit.file]
        assert edit.of(text) != text


@pytest.mark.turns(2)
@pytest.mark.parametrize("which", REFUSED)
def test_an_edit_is_refused(which: str) -> None:
    edit = next(edit for names, edit in all_edits() if edit.name.startswith(which) and "tagged" in names)
    assert judge(("tagged",), edit) == ("tagged", REFUSED[which])


def test_edits_that_are_called_equivalent_are_there_once() -> None:
    places = Counter(edit.place for _, edit in all_edits())
    assert {place: places[place] for place in equivalent()} == dict.fromkeys(equivalent(), 1)
