"""What commands print: aligned tables for people, JSON for programs, and diagnostics in the form that was asked for."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from amk.report.diagnostic import FORMATS, AmkError, Diagnostic, Format, Where, printable


def add_format(parser: argparse.ArgumentParser) -> None:
    """`--format`: json is for programs; the other forms are those of the diagnostics, and tables stay text."""
    parser.add_argument(
        "--format",
        choices=("text", *FORMATS),
        default="text",
        help="output form; text is full. sarif: one log on stdout, everything else on stderr (default: text)",
    )


class Findings:
    """The diagnostics of one process on their way out.

    full and concise go to stderr at once, github to stdout (where runners look for commands), json to stdout as one
    object per call; sarif is one log on stdout when the command has ended.
    """

    def __init__(self, form: Format, out: TextIO, err: TextIO) -> None:
        self.form, self.out, self.err = form, out, err
        self.diagnostics: list[Diagnostic] = []

    def tell(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics += diagnostics
        if self.form == "sarif":
            return
        from amk.report.render import render, wants_colour  # most commands have nothing to complain of

        stream = self.out if self.form in ("json", "github") else self.err
        stream.write(render(diagnostics, self.form, colour=stream is self.err and wants_colour(stream)))
        stream.flush()

    def close(self) -> None:
        if self.form == "sarif":
            from amk.report.render import render

            self.out.write(render(self.diagnostics, "sarif"))
            self.out.flush()


def write_file(path: Path, content: bytes) -> None:
    """Says on stderr that it did; AMK001 if it cannot."""
    try:
        path.write_bytes(content)
    except (OSError, ValueError) as error:
        raise AmkError(Diagnostic("AMK001", f"cannot write: {error}", where=Where(file=str(path)))) from error
    print(f"wrote {path} ({len(content):,} bytes)", file=sys.stderr)


def tell_no_certificate(path: Path | None, status: str) -> None:
    """On stderr, that a certificate which was asked for is not written."""
    if path is not None and status != "SAFE":
        print(f"not written: {path}; {status} has no certificate", file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; numbers are aligned right."""
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [bool(rows) and all(row[column][:1].isdigit() for row in rows) for column in range(len(header))]
    for row in cells:
        padded = (f"{c:>{w}}" if r else f"{c:<{w}}" for c, w, r in zip(row, widths, right, strict=True))
        print("  ".join(padded).rstrip())
