"""Diagnostics as GitHub workflow commands, which annotate the lines of a pull request.

Form: `::error file=F,line=L,col=C,endLine=E,endColumn=D,title=T::message`. Data escapes `%`, CR and LF; property values
also `:` and `,`, because those end them.
"""

from collections.abc import Sequence

from amk.report.diagnostic import Diagnostic, Severity, Where, printable

_COMMAND = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def workflow_command(diagnostic: Diagnostic, body: Sequence[str]) -> str:
    """One command; `body` are the lines below the message, already printable."""
    where = diagnostic.where or Where()
    properties: dict[str, str | int | None] = {"file": where.file, "line": where.line, "col": where.column}
    if diagnostic.source is not None:
        properties |= {"endLine": diagnostic.source.end_line, "endColumn": diagnostic.source.end_column}
    properties["title"] = f"{diagnostic.code}: {diagnostic.title}"
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items() if value is not None)
    path = f" ({printable(where.path)})" if where.path else ""
    message = "\n".join([printable(diagnostic.message) + path, *body])
    return f"::{_COMMAND[diagnostic.severity]} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")
