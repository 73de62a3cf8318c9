"""Workflow commands: one per diagnostic, and nothing in a diagnostic can end or start one."""

import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from amk.report.diagnostic import Diagnostic, Severity, Source, Where, because, printable
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
    diagnostics = [Diagnostic("AMK005", "m", severity) for severity in Severity]
    assert re.findall(r"^::(\w+)", render(diagnostics, "github"), re.M) == ["error", "warning", "notice"]


PROPERTY = (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))
DATA = (("%0D", "\r"), ("%0A", "\n"), ("%25", "%"))


def parsed(line: str) -> tuple[str, dict[str, str], str] | None:
    """(command, properties, data) by the rules of the runner's `ActionCommand.TryParseV2`; None for plain output."""
    text = line.lstrip()
    if not text.startswith("::") or (end := text.find("::", 2)) < 0:
        return None
    name, _, listed = text[2:end].partition(" ")
    if name not in ("error", "warning", "notice"):
        return None
    pairs = [part.split("=", 1) for part in listed.strip().split(",") if part]
    return name, {p[0]: unescaped(p[1], PROPERTY) for p in pairs if len(p) == 2}, unescaped(text[end + 2 :], DATA)


def unescaped(text: str, mapping: tuple[tuple[str, str], ...]) -> str:
    for code, character in mapping:
        text = text.replace(code, character)
    return text


def test_the_runner_reads_what_was_said() -> None:
    (line,) = render([RACE], "github").splitlines()
    place = {"file": "a,b:c.json", "line": "3", "col": "7", "endLine": "3", "endColumn": "9"}
    assert parsed(line) == (
        "error",
        place | {"title": "AMK302: read-write race"},
        "two accesses to 'x' are not ordered, 100% sure (/programs/0)\n| {}\n= nothing orders them\n= help: add a wait",
    )
    assert parsed("no command") is parsed("::set-env name=x::y") is parsed("::error") is None


@given(st.text(st.sampled_from(":,=%\r\n0AD23C5 ::x#[]"), min_size=1, max_size=40))
def test_text_made_of_the_runners_own_signs_survives(text: str) -> None:
    """Whatever a file or message is made of, the runner sees one command whose properties are ours."""
    output = render([Diagnostic("AMK005", "m" + text, where=Where("f" + text, 1, 1, "/p"), help="h")], "github")
    (line,) = re.split(r"\r\n|\n|\r", output.removesuffix("\n"))
    found = parsed(line)
    assert found is not None and found[0] == "error"
    assert set(found[1]) == {"file", "line", "col", "title"}
    assert found[1]["file"] == printable("f" + text)
    assert found[2].startswith(printable("m" + text) + " (/p)\n")


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=80))
def test_hostile_text_stays_inside_its_command(text: str) -> None:
    hostile = Diagnostic("AMK005", text, where=Where(text, 1, 1, text), facts=(because(text),), help=text)
    match = COMMAND.fullmatch(render([hostile], "github"))
    assert match is not None
    listed = dict(part.split("=", 1) for part in match.group(2).split(","))
    assert set(listed) == {"file", "line", "col", "title"}
    assert unquote(listed["title"]) == "AMK005: input does not match its schema"
