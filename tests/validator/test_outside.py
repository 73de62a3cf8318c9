"""Synchronisation outside the class is UNKNOWN, each kind with its own code; what looks alike inside it is decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amk.adversary.edits import apply
from amk.adversary.outside_recipes import OUTSIDE, pooled
from amk.adversary.recipe import Recipe, base_schedule
from amk.cli import main
from amk.lowering.kernel import build
from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.codec import canonical_json
from amk.validator.static.outside import check_outside
from amk.validator.verify import OUTSIDE as CODES
from amk.validator.verify import verify
from tests.validator.plans import from_document, small_plan


def edited(recipe: Recipe) -> Any:
    return apply(base_schedule(recipe.base), recipe.make(base_schedule(recipe.base)))[0]


def test_every_kind_has_its_code() -> None:
    assert {recipe.expect for recipe in OUTSIDE} == CODES


@pytest.mark.turns(24)
@pytest.mark.parametrize("recipe", OUTSIDE, ids=lambda recipe: recipe.name)
def test_the_command_says_unknown_and_no_code_is_made(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(edited(recipe)))
    assert main(["verify", str(file)]) == Exit.UNKNOWN
    captured = capsys.readouterr()
    assert captured.out.startswith("UNKNOWN") and recipe.expect in captured.out + captured.err
    with pytest.raises(AmkError, match=recipe.expect):
        build(from_document(edited(recipe)))


def test_whatever_else_is_wrong_the_verdict_is_unknown() -> None:
    """A deadlock found by an analysis that does not apply is not a finding."""
    schedule = edited(next(r for r in OUTSIDE if r.name == "wait-for-equal"))
    for program in schedule["programs"]:
        for node in program["body"][1]["body"]:
            for wait in node.get("waits", ()):
                wait["at_least"] = {"1": 10**6}
    assert verify(from_document(schedule)).status == "UNKNOWN"


def test_a_pool_with_one_holder_is_decided() -> None:
    document = base_schedule("fenced")
    document = apply(document, [edit for edit in pooled(document) if edit.path == ("pools",)])[0]
    finish = document["programs"][0]["body"][-1]
    assert finish["op"]["op"] == "finish"
    finish["takes"] = finish["gives"] = {"file": 4}
    schedule = from_document(document)
    assert check_outside(schedule) == [] and verify(schedule).safe
    with pytest.raises(AmkError, match="AMK601"):
        build(schedule)


def test_names_are_looked_up() -> None:
    document = edited(next(r for r in OUTSIDE if r.name == "step-when"))
    text = json.dumps(document).replace('"when": "request"', '"when": "requests"')
    with pytest.raises(AmkError, match="AMK009"):
        verify(from_document(json.loads(text)))


def test_plans_say_nothing_of_it() -> None:
    text = canonical_json(small_plan())
    for word in (b'"compare"', b'"action"', b'"when"', b'"takes"', b'"pools"', b'"data"'):
        assert word not in text
