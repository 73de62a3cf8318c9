"""Fixes: every one that is offered is SAFE, says what it changes, and its text replacements give the same schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amk import cli
from amk.repair.scene import scene
from amk.repair.search import candidates, find_repair
from amk.repair.text import fix
from amk.report.diagnostic import Change, Fix
from amk.report.json_file import Positions
from amk.schedule_ir.codec import canonical_json, load_schedule
from amk.validator.verify import verify
from tests.cases import cases
from tests.validator.plans import from_document, small_plan

FOLDER = Path(__file__).parents[2] / "adversarial"
QUICK = {
    "alias-part-x": "offset",
    "threshold-low": "instead of",
    "threshold-high": "instead of",
    "relaxed-signal": "release",
    "relaxed-wait": "acquire",
    "cta-scope": "scope gpu",
    "not-cooperative": "cooperative",
    "ring-without-fence": "fence",
    "rows-twice": "hidden.",
    "barrier-of-more": "agents = 4",
    "missing-signal": "signal",
    "missing-wait": "wait for h_mid",
    "initial-value": "init 0",
    "zero-tag": "tag",
    "wait-for-equal": ">= instead of ==",
}
"""Case -> words of its fix; each is among the first candidates, but that of the first case, which `--long` runs."""


def case(name: str) -> Any:
    return from_document(json.loads((FOLDER / f"{name}.json").read_text())["schedule"])


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", list(QUICK)[cases(1, 0) :])
def test_the_offered_fix_is_safe_and_says_what_it_does(name: str) -> None:
    bad = case(name)
    found = find_repair(bad, verify(bad), 60)
    assert found is not None and QUICK[name] in found.description
    assert verify(from_document(found.document)).status == "SAFE"
    assert found.before == json.loads(bad.model_dump_json()) != found.document
    text = canonical_json(bad)
    repair = fix(found.description, found.before, found.document, Positions(text))
    assert replaced(text.decode(), repair) == found.document
    assert changed(found.before, repair) == found.document
    assert len(repair.changes) <= 4


def replaced(text: str, repair: Fix) -> Any:
    """The one-line text with every region replaced, last ones first."""
    spans = []
    for order, change in enumerate(repair.changes):
        assert change.start is not None and change.end is not None and change.start[0] == change.end[0] == 1
        spans.append((change.start[1] - 1, change.end[1] - 1, order, change.text))
    for first, last, _, new in sorted(spans, reverse=True):
        text = text[:first] + new + text[last:]
    return json.loads(text)


def changed(document: Any, repair: Fix) -> Any:
    """The document after the changes, one after the other."""
    document = json.loads(json.dumps(document))
    for change in repair.changes:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in change.path.split("/")[1:]]
        at = document
        for part in parents:
            at = at[int(part) if isinstance(at, list) else part]
        key: Any = int(last) if isinstance(at, list) else last
        if change.do == "insert":
            at.insert(key, change.value)
        elif change.do == "remove":
            del at[key]
        else:
            at[key] = change.value
    return document


LEAVES = st.integers(0, 3)
LISTS = st.lists(LEAVES | st.lists(LEAVES, max_size=3), max_size=6)


@given(LISTS, LISTS, st.sampled_from([None, 1]))
def test_any_two_documents_differ_by_changes_that_lead_from_one_to_the_other(
    before: list[Any], after: list[Any], indent: int | None
) -> None:
    old, new = {"a": before, "b": 1}, {"a": after, "b": 1}
    text = json.dumps(old, indent=indent)
    repair = fix("d", old, new, Positions(text.encode()))
    assert changed(old, repair) == new
    if indent is None and all(change.start is not None for change in repair.changes):
        assert replaced(text, repair) == new


@given(st.permutations(range(5)), st.integers(0, 4), st.integers(0, 4))
def test_a_moved_element_is_a_removal_and_an_insertion(order: list[int], source: int, target: int) -> None:
    after = [*order]
    after.insert(target, after.pop(source))
    repair = fix("d", order, after, Positions(json.dumps(order).encode()))
    assert changed(order, repair) == after
    assert len(repair.changes) <= 2 and all(isinstance(c, Change) and c.start is not None for c in repair.changes)


def test_nothing_is_offered_for_a_safe_schedule_or_without_time() -> None:
    good, bad = small_plan(), case("missing-wait")
    assert find_repair(good, verify(good), 60) is None
    assert find_repair(bad, verify(bad), 0) is None


def test_candidates_are_schedules_of_the_same_model_and_do_not_repeat_the_original() -> None:
    bad = case("threshold-low")
    start = scene(bad, verify(bad))
    assert start.places
    first = [candidate for candidate, _ in zip(candidates(start), range(200), strict=False)]
    assert len(first) == 200 and all(candidate.description and candidate.edits for candidate in first)
    assert all(edit.path[0] != "model" for candidate in first for edit in candidate.edits)


def test_verify_offers_the_fix_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, fixed = tmp_path / "bad.json", tmp_path / "fixed.json"
    bad.write_bytes(canonical_json(case("cta-scope")))
    assert cli.main(["verify", str(bad), "--fix-seconds", "30"]) == 1
    assert "verified fix: counter 'h_out' with scope gpu" in capsys.readouterr().err
    assert cli.main(["verify", str(bad), "--fix-seconds", "30", "--format", "json"]) == 1
    (change,) = json.loads(capsys.readouterr().out)["diagnostics"][0]["fix"]["changes"]
    number = next(i for i, c in enumerate(load_schedule(bad)[0].counters) if c.name == "h_out")
    assert (change["do"], change["path"], change["value"]) == ("replace", f"/counters/{number}/scope", "gpu")
    assert cli.main(["verify", str(bad), "--fix-seconds", "30", "--format", "sarif"]) == 1
    result = json.loads(capsys.readouterr().out)["runs"][0]["results"][0]
    (replacement,) = result["fixes"][0]["artifactChanges"][0]["replacements"]
    region = replacement["deletedRegion"]
    line = bad.read_text().splitlines()[region["startLine"] - 1]
    assert line[region["startColumn"] - 1 : region["endColumn"] - 1] == '"cta"'
    assert replacement["insertedContent"]["text"] == '"gpu"'
    assert cli.main(["verify", str(bad), "--fix", "-o", str(fixed)]) == 1
    assert verify(load_schedule(fixed)[0]).status == "SAFE"
    capsys.readouterr()
    assert cli.main(["verify", str(fixed)]) == 0


def test_no_fix_is_looked_for_when_asked_not_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(canonical_json(case("cta-scope")))
    assert cli.main(["verify", str(bad), "--fix-seconds", "0"]) == 1
    assert "verified fix" not in capsys.readouterr().err
    assert cli.main(["verify", str(bad), "-o", str(tmp_path / "x.json")]) == 2


def test_no_fix_is_looked_for_where_a_verdict_takes_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each candidate needs a verdict, whose memory comes on top of that of the witness."""
    bad = tmp_path / "bad.json"
    bad.write_bytes(canonical_json(case("cta-scope")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("amk.repair.search.find_repair", lambda *_: pytest.fail("looked for"))
        assert cli.main(["verify", str(bad), "--fix-seconds", "1e-6"]) == 1
    assert "AMK505" in capsys.readouterr().err
