"""Whether a file is a flat system, without loading what reads one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from amk.report.diagnostic import AmkError
from amk.schedule_ir.json_file import read_bytes

MAX_FILE: Final = 512 * 2**20
"""Bytes that a file of a flat system may have."""
_SAYS_SO: Final = re.compile(rb'"format"\s*:\s*"amk\.flat/')


def is_system(path: Path) -> bool:
    """Whether the file says that it is of this format, in this or another version. Unreadable files are not."""
    try:
        return _SAYS_SO.search(read_bytes(path, MAX_FILE)) is not None
    except AmkError:
        return False
