"""Whether a file is a system, flat or with loops, without loading what reads one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from amk.report.diagnostic import AmkError
from amk.report.json_file import read_bytes

MAX_FILE: Final = 512 * 2**20
"""Bytes that a file of a flat system may have."""
_SAYS_SO: Final = re.compile(rb'"format"\s*:\s*"amk\.(flat|loops)/')


def format_of(path: Path) -> str | None:
    """`flat` or `loops`, of this or another version, as the file says; None for others and unreadable files."""
    try:
        found = _SAYS_SO.search(read_bytes(path, MAX_FILE))
    except AmkError:
        return None
    return None if found is None else found.group(1).decode()
