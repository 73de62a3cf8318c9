"""Every case file: the verdict it expects, a witness that replays, and a repaired twin that is SAFE."""

import json
from functools import cache
from pathlib import Path

import pytest

from amk.adversary import published
from amk.adversary.cases import FORMAT, RECIPES, make_case, repaired
from amk.adversary.classes.table import BY_NUMBER, CLASSES
from amk.adversary.confusion import tokens_for
from amk.adversary.minimal import minimal_case, minimal_name
from amk.adversary.mistakes import BY_LABEL, Mistake
from amk.adversary.published import PLANS, plan_case, system_case
from amk.judges.oracle.judge import rule
from amk.judges.oracle.systems import rule_system
from amk.judges.replay import replay
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.flat import judge
from amk.validator.program.system import from_json
from amk.validator.verify import verify

FOLDER = Path(__file__).parents[2] / "adversarial"
FILES = [f for f in sorted(FOLDER.rglob("*.json")) if '"system"' not in f.read_text()]
SYSTEMS = [f for f in sorted(FOLDER.rglob("*.json")) if f not in FILES]
BY_CLASS = [f for f in FILES if f.stem.startswith("class-")]
STATIC = {"AMK1", "AMK203", "AMK204", "AMK4", "AMK5"}
"""Findings that are arithmetic or a rule, not an interleaving; AMK103 and the like need no witness."""
RULES = {"overlap": "AMK301", "held back": "AMK302", "one name": "AMK302"}
"""Rules of rings, whose copies land at any time: whatever the interleaving, a ring's bytes are not its own, or a warp
waits for a copy that it holds back itself. And one of ops: two fields are not the same buffer."""


def _schedule(document: object) -> Schedule:
    return parse_schedule(json.dumps(document).encode(), "case")[0]


@cache
def _status(text: str) -> str:
    """The verdict on a twin: of most cases it is one of a few schedules."""
    return verify(parse_schedule(text.encode(), "twin")[0]).status


@cache
def _ruled(text: str) -> str:
    """What the oracle says of a twin."""
    twin = parse_schedule(text.encode(), "twin")[0]
    return rule(twin, tokens_for(twin)).status


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_case_has_its_verdict_and_its_twin_is_safe(file: Path) -> None:
    case = json.loads(file.read_text())
    assert case["format"] == FORMAT and case["name"] == file.stem and case["because"]
    verdict = verify(_schedule(case["schedule"]))
    codes = [d.code for d in verdict.diagnostics]
    assert verdict.status == case["status"]
    assert (codes or ["SAFE"])[0] == case["expect"]
    if verdict.evidence is not None:
        assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())
    elif case["status"] == "UNSAFE" and case["expect"] != RULES["overlap"]:
        message, code = verdict.diagnostics[0].message, case["expect"]
        held = "defer" in message and code == RULES["held back"]
        named = " for " in message and code == RULES["one name"]
        assert held or named or code[:4] in STATIC or code in STATIC
    assert _status(json.dumps(repaired(case))) == "SAFE"


@pytest.mark.parametrize("name", ["queue-inversion", "missing-signal", "missing-wait", "merge-before-attend"])
def test_no_step_of_a_witness_can_be_left_out(name: str) -> None:
    """Within a leg it does not matter which step goes, so one per leg is tried."""
    verdict = verify(_schedule(json.loads((FOLDER / f"{name}.json").read_text())["schedule"]))
    assert verdict.evidence is not None
    system, witness = verdict.evidence.system.to_json(), verdict.evidence.witness.to_json()
    assert replay(system, witness) and witness["order"]
    for i, (agent, count) in enumerate(witness["order"]):
        rest = [*witness["order"][:i], [agent, count - 1], *witness["order"][i + 1 :]]
        assert not replay(system, witness | {"order": rest})


def test_the_files_are_what_the_recipes_make() -> None:
    names = {r.name for r in RECIPES} | {minimal_name(c) for c in CLASSES}
    assert {f.stem for f in FOLDER.glob("*.json")} == names
    for recipe in RECIPES:
        assert json.loads((FOLDER / f"{recipe.name}.json").read_text()) == make_case(recipe), recipe.name


@pytest.mark.turns(24)
@pytest.mark.parametrize("number", BY_NUMBER)
def test_the_file_of_a_class_is_its_smallest_mutant(number: int) -> None:
    case = minimal_case(BY_NUMBER[number])
    assert json.loads((FOLDER / f"{case['name']}.json").read_text()) == case


def test_at_least_thirty_cases_carry_a_witness() -> None:
    kinds = [
        r
        for r in RECIPES
        if r.status == "UNSAFE"
        and (r.expect.startswith(("AMK2", "AMK3")) or r.expect in ("AMK105", "AMK502", "AMK503"))
    ]
    assert len(kinds) >= 30


@pytest.mark.parametrize("file", SYSTEMS, ids=lambda f: f.stem)
def test_a_case_of_a_flat_system_and_its_twin(file: Path) -> None:
    case = json.loads(file.read_text())
    bad, good = from_json(case["system"]), from_json(case["twin"])
    assert not judge(bad).safe and rule_system(bad).status == "UNSAFE"
    assert judge(good).safe and rule_system(good).status == "SAFE"
    if "witness" in case:
        assert replay(case["system"], case["witness"])
        assert not replay(case["twin"], case["witness"])


@pytest.mark.parametrize("file", BY_CLASS, ids=lambda f: f.stem)
def test_the_oracle_says_what_the_file_says(file: Path) -> None:
    case = json.loads(file.read_text())
    schedule = _schedule(case["schedule"])
    ruling = rule(schedule, tokens_for(schedule)).status
    assert (ruling, case["status"]) in {("UNSAFE", "UNSAFE"), ("OPEN", "UNKNOWN")}
    assert _ruled(json.dumps(repaired(case))) == "SAFE"


def test_the_published_mistakes_are_what_their_module_makes() -> None:
    cases = {c["name"]: c for c in [*map(plan_case, PLANS), *map(system_case, published.SYSTEMS)]}
    files = {f.stem: json.loads(f.read_text()) for f in (FOLDER / "published").glob("*.json")}
    assert files == cases and len({c["published"] for c in files.values()}) == 3
    many = _schedule(files["auto-race-among-many-tasks"]["schedule"])
    assert verify(many).stats["nodes"] > 8_000


def test_a_file_shows_the_code_that_its_class_is_about() -> None:
    for found in CLASSES:
        case = json.loads((FOLDER / f"{minimal_name(found)}.json").read_text())
        assert found.code in ("", case["expect"])
    codes = {found.number: found.code for found in CLASSES}
    assert (codes[15], codes[39], codes[42]) == ("AMK208", "AMK507", "AMK210")


def test_every_mistake_is_shown_and_every_numbered_one_has_a_class() -> None:
    assert {json.loads(f.read_text())["class"] for f in FOLDER.rglob("*.json")} == set(BY_LABEL)
    assert [found.mistake for found in CLASSES] == [mistake for mistake in Mistake if mistake.number]
    assert list(BY_NUMBER) == list(range(1, 45)) and len(BY_LABEL) == len({m.title for m in Mistake}) == len(Mistake)
    assert all(":" in (found.generate.__doc__ or "") for found in CLASSES)


def test_every_class_has_a_file() -> None:
    shown = {json.loads(f.read_text())["class"] for f in FOLDER.rglob("class-*.json")}
    assert shown == {found.mistake.label for found in CLASSES}
