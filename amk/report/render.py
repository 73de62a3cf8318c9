"""Diagnostics as text: `full` (several lines each), `concise` (one line each), `json`, `sarif`, `github`.

Texts may quote hostile input, so control characters are escaped before they can reach a terminal.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from amk.report.diagnostic import Diagnostic, Fact, Format, Severity, Where, printable

_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}


def wants_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Colour on a terminal unless NO_COLOR (https://no-color.org) is set and not empty, or TERM is dumb."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()


def render(diagnostics: Sequence[Diagnostic], form: Format = "full", *, colour: bool = False) -> str:
    """All diagnostics as one text, newline-terminated unless there are none; `json` and `sarif` are one object."""
    if form == "json":
        return json.dumps({"diagnostics": [as_json(d) for d in diagnostics]}, indent=2) + "\n"
    if form == "sarif":
        from amk.report.sarif import sarif  # few ask for it

        return json.dumps(sarif(diagnostics), indent=2) + "\n"
    if form == "github":
        from amk.report.github import workflow_command

        return "".join(workflow_command(d, _body(d)) + "\n" for d in diagnostics)
    if form == "concise":
        return "".join(_concise(d, colour) + "\n" for d in diagnostics)
    said: set[tuple[str, str]] = set()
    return "".join(_full(d, colour, said) + "\n" for d in diagnostics)


def as_json(diagnostic: Diagnostic) -> dict[str, Any]:
    """The diagnostic as JSON-ready data; absent parts are null, so the keys are always the same."""
    where = diagnostic.where or Where()
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity.value,
        "title": diagnostic.title,
        "message": diagnostic.message,
        "where": {"file": where.file, "line": where.line, "column": where.column, "path": where.path},
        "facts": [{"mark": fact.mark, "text": fact.text} for fact in diagnostic.causes],
        "help": diagnostic.advice,
        "source": None if diagnostic.source is None else asdict(diagnostic.source),
        "fix": None if diagnostic.fix is None else asdict(diagnostic.fix),
    }


def _full(diagnostic: Diagnostic, colour: bool, earlier: set[tuple[str, str]]) -> str:
    """earlier: code and line of every reason and help so far; what findings of one code have in common is said once."""
    lines = [f"{_label(diagnostic, colour)}: {_bold(printable(diagnostic.message), colour)}"]
    place, path = _place(diagnostic.where), diagnostic.where.path if diagnostic.where else None
    if place or path:
        lines.append("  --> " + "   ".join(part for part in (place, f"({printable(path)})" if path else "") if part))
    body = [(diagnostic.code, line) for line in _body(diagnostic)]
    lines += [f"   {line}" for code, line in body if line[0] != "=" or (code, line) not in earlier]
    earlier.update(body)
    return "\n".join(lines)


def _body(diagnostic: Diagnostic) -> list[str]:
    """The lines under the message: the input itself, the facts, what to do, and a fix that was verified."""
    facts = [Fact("|", diagnostic.source.text)] if diagnostic.source else []
    facts += [*diagnostic.causes, Fact("=", f"help: {diagnostic.advice}")]
    if diagnostic.fix:
        facts.append(Fact("=", f"verified fix: {diagnostic.fix.description}"))
    return [f"{fact.mark} {printable(fact.text)}" for fact in facts]


def _concise(diagnostic: Diagnostic, colour: bool) -> str:
    place, path = _place(diagnostic.where), diagnostic.where.path if diagnostic.where else None
    start = f"{place}: " if place else ""
    end = f" ({printable(path)})" if path else ""
    return f"{start}{_label(diagnostic, colour)}: {printable(diagnostic.message)}{end}"


def _place(where: Where | None) -> str:
    """`file:line:column` as far as it is known."""
    if where is None or where.file is None:
        return ""
    parts = [printable(where.file)]
    if where.line is not None:
        parts.append(str(where.line))
        if where.column is not None:
            parts.append(str(where.column))
    return ":".join(parts)


def _label(diagnostic: Diagnostic, colour: bool) -> str:
    label = f"{diagnostic.severity.value}[{diagnostic.code}]"
    return f"\x1b[1;{_COLOURS[diagnostic.severity]}m{label}\x1b[0m" if colour else label


def _bold(text: str, colour: bool) -> str:
    return f"\x1b[1m{text}\x1b[0m" if colour else text
