"""What commands print on standard output: aligned tables for people, JSON for programs."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from amk.report.render import printable


def add_format(parser: argparse.ArgumentParser) -> None:
    """`--format text|json`; diagnostics follow it, so that a program reads one kind of output in either case."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output form (default: text)")


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
