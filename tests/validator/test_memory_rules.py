"""M1 to M13, rule by rule: what breaks one is refused by its own code, by the oracle, and gets no certificate."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from amk.adversary.cases import RECIPES, make_case, repaired
from amk.adversary.edits import Edit, Json, apply
from amk.adversary.recipe import base_schedule
from amk.judges.oracle.judge import rule
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.memory import memory_model
from amk.validator.verify import verify

BROKEN = {
    "release-before-barrier": "AMK501",
    "relaxed-signal": "AMK502",
    "relaxed-wait": "AMK503",
    "poll-without-barrier": "AMK504",
    "cta-scope": "AMK505",
    "weak-poll": "AMK506",
    "wide-signal": "AMK506",
    "ring-without-fence": "AMK507",
    "stream-of-written-memory": "AMK507",
    "bulk-store-not-awaited": "AMK508",
    "constant-written": "AMK509",
    "mixed-reductions": "AMK510",
    "barrier-only-arrived-at": "AMK511",
    "tensor-map-modified": "AMK512",
    "repeated-tag": "AMK513",
    "tag-reaches-next-token": "AMK513",
    "zero-tag": "AMK513",
}
UNSAYABLE = {
    "M8": [Edit("insert", ("programs", 0, "body", 0), {"op": {"op": "bulk_store", "role": "w0", "wait": "read"}})],
    "M10": [Edit("insert", ("buffers", 0, "accumulate"), "f32.gpu")],
    "M11": [Edit("insert", ("programs", 0, "body", 0), {"op": {"op": "barrier_arrive", "role": "w0", "id": 1}})],
    "M12": [Edit("replace", ("streams", 0, "engine"), "tensor")],
}
"""Operations that could break these rules; the format has none of them, only the word that a rule is broken."""


def parsed(document: Json) -> Schedule:
    return parse_schedule(json.dumps(document).encode(), "case")[0]


def table() -> dict[str, list[str]]:
    """Cells of each rule's row in the README of the validator."""
    text = (Path(memory_model.__file__).parents[1] / "README.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| M"]
    return {row[0].split(":")[0]: row for row in rows}


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_refused_by_its_code(name: str) -> None:
    case = make_case(next(r for r in RECIPES if r.name == name))
    schedule, twin = parsed(case["schedule"]), parsed(repaired(case))
    verdict = verify(schedule)
    codes = [d.code for d in verdict.diagnostics]
    assert codes[0] == BROKEN[name] and {c for c in codes if c.startswith("AMK5")} == {BROKEN[name]}
    assert (verdict.status, rule(schedule, 2).status) in {("UNSAFE", "UNSAFE"), ("UNKNOWN", "OPEN")}
    with pytest.raises(NotSafe):
        certify_schedule(schedule)
    assert verify(twin).safe and rule(twin, 2).status == "SAFE" and certify_schedule(twin)


@pytest.mark.parametrize("rule_name", UNSAYABLE)
def test_what_the_format_cannot_say_is_refused_when_it_is_read(rule_name: str) -> None:
    with pytest.raises(AmkError) as caught:
        parsed(apply(base_schedule("fenced"), UNSAYABLE[rule_name])[0])
    assert {d.code for d in caught.value.diagnostics} == {"AMK005"} and "AMK5" in table()[rule_name][2]


def test_every_rule_has_a_code_of_its_own() -> None:
    refused = [re.findall(r"AMK(5\d\d)", row[2]) for row in table().values()]
    assert refused == [[f"5{n:02d}"] for n in range(1, 14)]


def test_the_table_has_every_rule_and_the_codes_of_its_cases() -> None:
    assert list(table()) == [f"M{n}" for n in range(1, 14)]
    named = set()
    for _, _, codes, cases in table().values():
        for case in re.findall(r"`([a-z-]+)`", cases):
            if case in BROKEN:
                assert BROKEN[case] in codes
                named.add(case)
    assert named == set(BROKEN)


def test_a_missing_barrier_is_named_only_where_a_hand_off_is_there() -> None:
    """Not where the signal comes first in the program, or where warps of one worker are kept apart by the barrier."""
    for name in ("signal-before-write", "rope-without-barrier", "missing-wait", "wait-after-read", "threshold-low"):
        verdict = verify(parsed(make_case(next(r for r in RECIPES if r.name == name))["schedule"]))
        assert [d.code for d in verdict.diagnostics] == ["AMK302"]
