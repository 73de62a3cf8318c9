"""Diagnostics as text: the three formats, colour, and hostile content."""

import io
import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amk.report.diagnostic import AmkError, Diagnostic, Exit, Severity, Where, because, printable, shown
from amk.report.render import render, wants_colour

DEADLOCK = Diagnostic(
    "AMK201",
    "deadlock: task 417 can never start",
    where=Where("schedule.json", 2109, 7, "/agents/57/events/3"),
    facts=(shown("417  gemv L12 down[512:576)  on sm57 waits c88 >= 9"), because("cycle: t417 -> t431 -> t417")),
    help="move t431 before t417, or wait for c88 >= 8",
)


def test_full_is_the_documented_form() -> None:
    assert render([DEADLOCK]) == (
        "error[AMK201]: deadlock: task 417 can never start\n"
        "  --> schedule.json:2109:7   (/agents/57/events/3)\n"
        "   | 417  gemv L12 down[512:576)  on sm57 waits c88 >= 9\n"
        "   = cycle: t417 -> t431 -> t417\n"
        "   = help: move t431 before t417, or wait for c88 >= 8\n"
    )


def test_what_findings_of_one_code_have_in_common_is_said_once() -> None:
    again = replace(DEADLOCK, message="deadlock: task 418 can never start")
    other = Diagnostic("AMK202", "too few", where=DEADLOCK.where, facts=DEADLOCK.facts, help=DEADLOCK.help)
    text = render([DEADLOCK, again, other])
    assert text.count("= cycle: t417") == text.count("= help: move t431") == 2 and text.count("| 417  gemv") == 3
    assert text.endswith(render([other])) and len(text.splitlines()) == 5 + 3 + 5


def test_concise_is_one_line_each() -> None:
    text = render([DEADLOCK, Diagnostic("AMK004", "version 9", Severity.WARNING)], "concise")
    assert text.splitlines() == [
        "schedule.json:2109:7: error[AMK201]: deadlock: task 417 can never start (/agents/57/events/3)",
        "warning[AMK004]: version 9",
    ]


def test_json_has_every_key_even_when_absent() -> None:
    first, second = json.loads(render([DEADLOCK, Diagnostic("AMK901", "x")], "json"))["diagnostics"]
    assert first["where"] == {"file": "schedule.json", "line": 2109, "column": 7, "path": "/agents/57/events/3"}
    assert first["facts"][1] == {"mark": "=", "text": "cycle: t417 -> t431 -> t417"}
    assert first.keys() == second.keys()
    assert second["where"] == {"file": None, "line": None, "column": None, "path": None}
    assert second["title"] == "internal error"


def test_colour_wraps_the_label_only_when_asked() -> None:
    assert "\x1b[1;31merror[AMK201]\x1b[0m" in render([DEADLOCK], colour=True)
    assert "\x1b" not in render([DEADLOCK])


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_follows_terminal_and_no_color(environment: dict[str, str], expected: bool) -> None:
    assert wants_colour(_Terminal(), environment) is expected
    assert wants_colour(io.StringIO(), environment) is False


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=200))
def test_hostile_text_cannot_control_the_terminal(text: str) -> None:
    hostile = Diagnostic("AMK005", text, where=Where(text, 1, 1, text), facts=(shown(text),), help=text)
    full = render([hostile])
    assert full.count("\n") == 4
    assert all(c.isprintable() for line in full.split("\n") for c in line)
    assert render([hostile], "concise").count("\n") == 1
    json.loads(render([hostile], "json"))


def test_long_text_is_cut_with_its_length() -> None:
    assert printable("x" * 50, limit=10) == "xxxxxxxxxx... (50 characters)"


def test_unregistered_code_is_refused() -> None:
    with pytest.raises(ValueError, match="AMK999"):
        Diagnostic("AMK999", "no such code")


def test_error_carries_diagnostics_and_exit_code() -> None:
    error = AmkError([DEADLOCK], Exit.UNSAFE)
    assert error.exit_code == 1
    assert error.diagnostics == (DEADLOCK,)
    assert AmkError(DEADLOCK).exit_code == Exit.INPUT
    again = pickle.loads(pickle.dumps(error))
    assert (again.diagnostics, again.exit_code, str(again)) == (error.diagnostics, error.exit_code, str(error))
    with pytest.raises(ValueError, match="at least one"):
        AmkError([])
