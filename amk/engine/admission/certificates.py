"""Certificates of earlier starts on disk, so that a schedule is proved once and checked at every start.

Nothing here is trusted: a certificate is data that the checker accepts or refuses, wherever it comes from. So an entry
that was edited, or made by another version, costs a new proof and nothing else.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import platformdirs

from amk.report.diagnostic import AmkError
from amk.report.json_file import read_bytes

MOST_BYTES = 64 << 20


def directory() -> Path:
    """`$AMK_CACHE`, else the user's cache directory."""
    cache = os.environ.get("AMK_CACHE")
    return (Path(cache) if cache else Path(platformdirs.user_cache_dir("amk", appauthor=False))) / "certificates"


def load(digest: str) -> Any:
    """The certificate of the schedule with that hash; None if there is none that can be read."""
    try:
        return json.loads(read_bytes(directory() / f"{digest}.json", MOST_BYTES))
    except (AmkError, ValueError, RecursionError):
        return None


def keep(digest: str, certificate: Any) -> None:
    """Replace the entry as a whole. A directory that cannot be written costs only the time of the next proof."""
    replace(directory() / f"{digest}.json", json.dumps(certificate))


def replace(path: Path, text: str) -> None:
    """The file with this text, as a whole, or as it was where it cannot be written."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:16]}", suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
