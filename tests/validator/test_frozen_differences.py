"""A recorded difference names the schedule that it is about."""

from __future__ import annotations

import pytest

from amk.adversary.neighbourhood.bases import base
from amk.adversary.neighbourhood.search import ordered
from amk.adversary.neighbourhood.survey import Survey
from tests.validator import frozen
from tests.validator.frozen_differences import Difference, document


def test_a_line_is_read_as_it_was_written() -> None:
    was, now = ["UNSAFE", "AMK302", "/programs/0/body/1/op"], ["SAFE", "", ""]
    difference = Difference.of(f"mutants: class 34, frozen/28/34: was {was}, is {now}")
    assert difference == Difference("mutants", "class 34, frozen/28/34", was, now)
    assert difference.kind == "mutants: UNSAFE AMK302 > SAFE"
    flat = Difference.of(
        "mutants: class 6, frozen/1/6: was ['SAFE', False, False, False], is ['UNSAFE', True, False, False]"
    )
    assert flat.kind == "mutants: SAFE > UNSAFE"
    with pytest.raises(ValueError, match="killed"):
        Difference.of("slice 3: killed: its process died twice")


def test_the_names_of_a_slice_give_its_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "MUTANTS", 3)
    monkeypatch.setattr(frozen, "FILES", 2)
    for name, made in frozen._mutants(5):
        assert document("mutants", name) == made
    survey = Survey(base("LayerNorm, parallel"))
    for change in ordered("LayerNorm, parallel")[:3]:
        assert document("neighbourhood", f"LayerNorm, parallel {change.key}") == survey.edited(change)
    monkeypatch.setitem(frozen.PARTS, "files", (frozen._files, 1))
    for name, made in frozen._files(0):
        assert document("files", name) == made
