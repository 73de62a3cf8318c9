"""What `amk bench` prints and draws of the rows of one command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amk.bench.table.plot import drawn
from amk.bench.table.record import Record
from amk.bench.table.row import Row, cells, header
from amk.commands.output import print_json, print_table
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where

SUFFIXES = (".svg", ".html")


def print_rows(arguments: argparse.Namespace, rows: Sequence[Row], provenance: dict[str, Any]) -> None:
    if arguments.format == "json":
        print_json({"rows": [each.record() for each in rows], "run": provenance})
        return
    names = rows[0].key.baselines if rows else ()
    print_table(header(names), [cells(each) for each in rows])


def drawn_only(arguments: argparse.Namespace) -> int:
    """`--plot FILE --rows RECORD...`: needs no GPU. AMK001 for a record that is not there."""
    rows: list[Row] = []
    for name in arguments.rows:
        if not Path(name).is_file():
            raise AmkError(Diagnostic("AMK001", "there is no such record", where=Where(file=name)))
        rows += Record.open(Path(name)).rows()
    draw(Path(arguments.plot), rows)
    return Exit.SAFE


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Write the charts of `rows`. AMK005 for another kind of file, AMK001 if it cannot be written."""
    if path.suffix not in SUFFIXES:
        raise AmkError(Diagnostic("AMK005", f"--plot draws {' or '.join(SUFFIXES)}", where=Where(file=str(path))))
    text = drawn(rows, html=path.suffix == ".html")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AmkError(Diagnostic("AMK001", f"cannot write: {error}", where=Where(file=str(path)))) from error
    print(f"wrote {path} ({len(text):,} bytes)", file=sys.stderr)
