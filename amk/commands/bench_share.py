"""`amk bench --share FILE`: what was measured as a small file for those without the card."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amk.bench.table.measurement import Measurement
from amk.bench.table.row import Row
from amk.bench.table.shared import pack_all, shared, write


def add_share(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--share", type=Path, metavar="FILE", help="write a small file that `amk calibrate --learn` learns from"
    )
    parser.add_argument("--sign", type=Path, metavar="KEY", help="with --share: sign it with this ssh key")


def check_share(cases: Sequence[Measurement]) -> None:
    """AMK002 or AMK005 before anything is measured, if the cases are too many for one file."""
    pack_all([case.schedule for case in cases])


def share(
    arguments: argparse.Namespace, cases: Sequence[Measurement], rows: Sequence[Row], provenance: dict[str, Any]
) -> None:
    """Write the rows that were measured; says what the file holds."""
    schedules = {case.key: case.schedule for case in cases}
    content = shared([(row, schedules[row.key]) for row in rows], provenance)
    write(arguments.share, content, arguments.sign)
    signed = "signed" if arguments.sign else "not signed"
    print(f"wrote {arguments.share}: {len(rows)} rows, schedules, hardware, versions; {signed}", file=sys.stderr)
