"""The registry of codes: complete, well-formed, and explained."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

import amk
from amk.report.diagnostic import AREAS, TITLES, advice, area, explanation, normalise, reason


@pytest.mark.parametrize("code", TITLES)
def test_code_is_well_formed_and_in_an_area(code: str) -> None:
    assert re.fullmatch(r"AMK\d{3}", code)
    assert area(code) in AREAS.values()
    assert not TITLES[code].endswith(".")


@pytest.mark.parametrize("code", TITLES)
def test_explanation_says_what_why_example_and_fix(code: str) -> None:
    text = explanation(code)
    assert text.startswith(f"# {code}: {TITLES[code]}\n")
    assert len(text) > 300
    for part in ("**Why it matters.**", "**Example.**", "**Fix.**"):
        assert text.count(part) == 1, part


def test_every_explanation_file_belongs_to_a_registered_code() -> None:
    present = {path.name.removesuffix(".md") for path in (files("amk.report") / "explain").iterdir()}
    assert present == set(TITLES)


def test_codes_are_listed_in_order_and_titles_differ() -> None:
    assert list(TITLES) == sorted(TITLES)
    assert len(set(TITLES.values())) == len(TITLES)


@pytest.mark.parametrize("text", ["AMK201", "amk201", "201", " 201 "])
def test_normalise_accepts_the_usual_spellings(text: str) -> None:
    assert normalise(text) == "AMK201"


@pytest.mark.parametrize("code", ["AMK999", "201", "../AMK201", ""])
def test_unregistered_code_has_no_explanation(code: str) -> None:
    with pytest.raises(KeyError):
        explanation(code)
    with pytest.raises(KeyError):
        area(code)


def test_codes_given_by_the_source_are_those_in_the_table() -> None:
    """Nothing unexplained is given, and nothing is explained that no check gives."""
    codes: set[str] = set()
    for path in Path(amk.__file__).parent.rglob("*.py"):
        if path.name != "diagnostic.py":
            codes |= set(re.findall(r"AMK\d{3}", path.read_text(encoding="utf-8")))
    assert codes == set(TITLES)


@pytest.mark.parametrize("code", TITLES)
def test_every_code_has_advice_and_a_reason_of_one_line(code: str) -> None:
    for text in (advice(code), reason(code)):
        assert 15 < len(text) < 330 and "\n" not in text
        assert text.replace("\n", " ") in " ".join(explanation(code).split())
