"""Diagnostics as a SARIF 2.1.0 log (OASIS, https://docs.oasis-open.org/sarif/sarif/v2.1.0): one run, one rule per code.

Regions count lines and columns from 1 in Unicode code points, ends exclusive. A verified fix becomes a `fix` with one
replacement per change of the text.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from amk.report.diagnostic import TITLES, Change, Diagnostic, Severity, Where, advice, area, explanation, printable
from amk.version import __version__

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

Json = dict[str, Any]


def sarif(diagnostics: Sequence[Diagnostic]) -> Json:
    """The log; without diagnostics its results are empty, which says that the tool ran and found nothing."""
    codes = sorted({d.code for d in diagnostics})
    rules = [_rule(code) for code in codes]
    driver = {"name": "amk", "version": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(d, codes.index(d.code)) for d in diagnostics],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: str) -> Json:
    return {
        "id": code,
        "shortDescription": {"text": TITLES[code]},
        "fullDescription": {"text": f"{TITLES[code]}. Fix: {advice(code)}"},
        "help": {"text": explanation(code), "markdown": explanation(code)},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": [area(code)]},
    }


def _result(diagnostic: Diagnostic, rule: int) -> Json:
    text = [printable(diagnostic.message), *(printable(fact.text) for fact in diagnostic.causes)]
    result: Json = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}[diagnostic.severity],
        "message": {"text": "\n".join([*text, f"help: {printable(diagnostic.advice)}"])},
    }
    if location := _location(diagnostic):
        result["locations"] = [location]
    if fix := _fix(diagnostic):
        result["fixes"] = [fix]
    return result


def _location(diagnostic: Diagnostic) -> Json:
    where = diagnostic.where or Where()
    location: Json = {}
    if where.file is not None:
        location["physicalLocation"] = {"artifactLocation": _artifact(where.file)} | _region(diagnostic, where)
    if where.path:
        location["logicalLocations"] = [{"fullyQualifiedName": printable(where.path), "kind": "value"}]
    return location


def _region(diagnostic: Diagnostic, where: Where) -> Json:
    if where.line is None:
        return {}
    region: Json = {"startLine": where.line}
    if where.column is not None:
        region["startColumn"] = where.column
    if diagnostic.source is not None and where.column is not None:
        end = {"endLine": diagnostic.source.end_line, "endColumn": diagnostic.source.end_column}
        region |= end | {"snippet": {"text": printable(diagnostic.source.text)}}
    return {"region": region}


def _artifact(file: str) -> Json:
    """A path as a URI reference without scheme or host: colons are quoted, and `//` cannot stand at the start."""
    path = "/" + file.lstrip("/") if file.startswith("/") else file
    return {"uri": quote(path.encode("utf-8", "surrogatepass"), safe="/")}


def _fix(diagnostic: Diagnostic) -> Json | None:
    fix, where = diagnostic.fix, diagnostic.where or Where()
    if fix is None or where.file is None or any(change.start is None for change in fix.changes):
        return None
    replacements = [_replacement(change) for change in fix.changes]
    change = {"artifactLocation": _artifact(where.file), "replacements": replacements}
    return {"description": {"text": printable(fix.description)}, "artifactChanges": [change]}


def _replacement(change: Change) -> Json:
    assert change.start is not None and change.end is not None
    region = {
        "startLine": change.start[0],
        "startColumn": change.start[1],
        "endLine": change.end[0],
        "endColumn": change.end[1],
    }
    return {"deletedRegion": region} | ({"insertedContent": {"text": change.text}} if change.text else {})
