"""`amk bench --share FILE`: what was measured as a small file for those without the card."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amk.bench.table.measurement import Measurement
from amk.bench.table.row import Row
from amk.bench.table.shared import shared, write


def add_share(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--share", type=Path, metavar="FILE", help="write a small file that `amk calibrate --learn` learns from"
    )
    parser.add_argument("--sign", type=Path, metavar="KEY", help="with --share: sign it with this ssh key")


def share(
    arguments: argparse.Namespace, cases: Sequence[Measurement], rows: Sequence[Row], provenance: dict[str, Any]
) -> None:
    """Write the rows that were measured; says what the file holds."""
    schedules = {case.key: case.schedule for case in cases}
    content = shared([(row, schedules[row.key]) for row in rows], provenance)
    write(arguments.share, content, arguments.sign)
    signed = "signed" if arguments.sign else "not signed"
    print(f"wrote {arguments.share}: {len(rows)} rows, hardware, versions, hashes; {signed}", file=sys.stderr)
