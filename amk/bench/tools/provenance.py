"""Which code made a record, and when."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

from amk.version import __version__


def software(command: str) -> dict[str, object]:
    """What a recorded row needs so that somebody else can repeat it, the hardware apart."""
    return {
        "command": command,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "amk": __version__,
        "python": platform.python_version(),
    }


def commit() -> str:
    """The checkout's commit, with '+' when files differ from it; AMK_COMMIT where the code was copied without git."""
    if named := os.environ.get("AMK_COMMIT"):
        return named
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return f"release {__version__}"
    head, dirty = _git(root, "rev-parse", "--short=12", "HEAD"), _git(root, "status", "--porcelain", "-uno")
    return f"{head}{'+' if dirty else ''}" if head else "unknown"


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
