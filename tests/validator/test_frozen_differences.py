"""A recorded difference names the schedule that it is about."""

from __future__ import annotations

import pytest

from amk.adversary.neighbourhood.bases import base
from amk.adversary.neighbourhood.search import ordered
from amk.adversary.neighbourhood.survey import Survey
from tests.validator import frozen
from tests.validator.frozen_differences import Difference, document, ends, page


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
    for name, case in frozen._mutants(5):
        assert document("mutants", name) == case
    survey = Survey(base("LayerNorm, parallel"))
    for change in ordered("LayerNorm, parallel")[:3]:
        assert document("neighbourhood", f"LayerNorm, parallel {change.key}") == survey.edited(change)
    monkeypatch.setitem(frozen.PARTS, "files", (frozen._files, 1))
    for name, case in frozen._files(0):
        assert document("files", name) == case


def test_bisection_finds_where_each_answer_ends() -> None:
    commits = [str(n) for n in range(40)]
    end = {"a": 1, "b": 39, "c": 17, "d": 17}
    asked = list[str]()

    def ask(commit: str, names: list[str]) -> dict[str, list[str | bool]]:
        asked.append(commit)
        return {name: ["SAFE", "", ""] if int(commit) >= end[name] else ["UNSAFE", "AMK302", ""] for name in names}

    found = ends({name: ["UNSAFE", "AMK302", ""] for name in end}, commits, ask)
    assert found == {name: str(at) for name, at in end.items()}
    assert len(asked) == len(set(asked)) < 20


def test_the_page_has_every_kind_beside_its_reason() -> None:
    kinds = {
        "mutants: UNSAFE AMK302 > SAFE": {"count": 2, "ends at": ["097430cc"]},
        "matrix: UNSAFE AMK405 > SAFE": {"count": 7, "ends at": ["36718803", "caa2d7ec"]},
        "full-size: UNSAFE AMK501 > UNSAFE AMK302": {"count": 1, "ends at": []},
    }
    record = {"kinds": kinds, "differences": [""] * 10, "against": "e3c703bd", "run": {"commit": "78e9efb8"}}
    text = page(record, "frozen-validator.json")
    rows = text.splitlines()[6:]
    assert [row.split(" | ")[0] for row in rows] == ["| 7", "| 2", "| 1"]
    assert "the refusal was needless" in rows[1] and "do not differ so" in rows[2]
