"""Workflow commands: one per diagnostic, and nothing in a diagnostic can end or start one."""

import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from amk.report.diagnostic import Diagnostic, Severity, Source, Where, because
from amk.report.render import render

RACE = Diagnostic(
    "AMK302",
    "two accesses to 'x' are not ordered, 100% sure",
    where=Where("a,b:c.json", 3, 7, "/programs/0"),
    facts=(because("nothing orders them"),),
    help="add a wait",
    source=Source("{}", 3, 9),
)
COMMAND = re.compile(r"::(error|warning|notice) ([^:\n]*)::([^\r\n]*)\n")


def test_a_command_carries_place_title_and_message() -> None:
    assert render([RACE], "github") == (
        "::error file=a%2Cb%3Ac.json,line=3,col=7,endLine=3,endColumn=9,title=AMK302%3A read-write race::"
        "two accesses to 'x' are not ordered, 100%25 sure (/programs/0)%0A"
        "| {}%0A= nothing orders them%0A= help: add a wait\n"
    )


def test_severities_have_their_commands() -> None:
    made = [Diagnostic("AMK005", "m", severity) for severity in Severity]
    assert re.findall(r"^::(\w+)", render(made, "github"), re.M) == ["error", "warning", "notice"]


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=80))
def test_hostile_text_stays_inside_its_command(text: str) -> None:
    hostile = Diagnostic("AMK005", text, where=Where(text, 1, 1, text), facts=(because(text),), help=text)
    match = COMMAND.fullmatch(render([hostile], "github"))
    assert match is not None
    listed = dict(part.split("=", 1) for part in match.group(2).split(","))
    assert set(listed) == {"file", "line", "col", "title"}
    assert unquote(listed["title"]) == "AMK005: input does not match its schema"
