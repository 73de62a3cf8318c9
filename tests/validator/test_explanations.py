"""Diagnostics of verdicts have the shape that people read: place, the text there, what, why, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amk.report.render import as_json, render
from amk.schedule_ir.codec import canonical_json, located, parse_schedule
from amk.validator.verify import verify
from tests.validator.plans import from_document

FOLDER = Path(__file__).parents[2] / "adversarial"


def _first_of_each_code() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in sorted(FOLDER.glob("*.json")):
        case = json.loads(file.read_text())
        if "schedule" in case and case["status"] != "SAFE":
            found.setdefault(case["expect"], file)
    return found


CASES = _first_of_each_code()


@pytest.mark.turns(4)
@pytest.mark.parametrize("code", CASES)
def test_every_diagnostic_says_where_what_why_and_what_to_do(code: str) -> None:
    text = canonical_json(from_document(json.loads(CASES[code].read_text())["schedule"]))
    schedule, positions = parse_schedule(text, "plan.json")
    verdict = verify(schedule)
    assert code in [d.code for d in verdict.diagnostics]
    for diagnostic in verdict.diagnostics:
        document = as_json(located(diagnostic, "plan.json", positions))
        where, source = document["where"], document["source"]
        assert where["path"] in positions, (diagnostic.code, where)
        assert where["line"] == 1 and 1 <= where["column"] < source["end_column"] <= len(text)
        assert any(fact["mark"] == "=" and len(fact["text"]) > 8 for fact in document["facts"])
        assert len(document["help"]) > 15 and len(document["message"]) > 15
        lines = render([located(diagnostic, "plan.json", positions)]).splitlines()
        assert lines[0].startswith(("error[", "warning[")) and lines[1].startswith("  --> plan.json:1:")
        assert lines[2].startswith("   | ") and lines[-1].startswith("   = help: ")


def _facts(name: str) -> list[str]:
    verdict = verify(from_document(json.loads((FOLDER / f"{name}.json").read_text())["schedule"]))
    return [fact.text for fact in verdict.diagnostics[0].facts]


def test_a_race_names_both_accesses_with_their_warps() -> None:
    first, second, reason = _facts("missing-wait")
    assert " warp " in first and " warp " in second and {"reads", "writes"} == {_verb(first), _verb(second)}
    assert "/programs/0/body/" in first and "orders" in reason


def _verb(fact: str) -> str:
    return fact.split(":")[0].split()[-1]


def test_a_cycle_names_who_waits_and_who_would_have_to_signal() -> None:
    facts = _facts("queue-inversion")
    assert sum("which stays at" in fact and "more would come from worker" in fact for fact in facts) >= 2


def test_missing_increments_are_said_to_come_from_nobody() -> None:
    assert any("nothing adds to it any more" in fact for fact in _facts("missing-signal"))


def test_bytes_of_shared_memory_are_named() -> None:
    verdict = verify(from_document(json.loads((FOLDER / "alias-part-x.json").read_text())["schedule"]))
    assert "'x' and 'part'" in verdict.diagnostics[0].message
