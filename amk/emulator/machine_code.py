"""Where the emulator's machine code is kept between processes: in the user's cache, by the content of its sources.

Numba stamps what it keeps with the content of the function's own file. Constants of other files (columns, offsets of
tables) go into the code as well, so a stamp of one file is not enough.

Numba numbers the files of a function's signatures, and two processes that keep different ones at once take the same
number: its index then gives one the code of the other. Here one process after the other keeps what it has compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
import platformdirs
from numba.core import caching

_IMPORTED = re.compile(r"^from amk\.emulator((?:\.\w+)*) import ([\w, ]*)", re.MULTILINE)
KEPT = 8
"""Versions of the emulator whose code is kept."""


@cache
def directory() -> Path:
    """Of this version; made if it is not there, and the oldest ones are removed."""
    digest = hashlib.sha256(numba.__version__.encode())
    for text in _sources("machine/schedule_loop").values():
        digest.update(text.encode())
    place = platformdirs.user_cache_path("amk", appauthor=False) / "emulator" / digest.hexdigest()[:24]
    try:
        place.mkdir(parents=True, exist_ok=True)
        os.utime(place)
        others = sorted(place.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in others[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError:  # then numba finds that it cannot write there, and compiles for this process alone
        pass
    return place


def _sources(module: str) -> dict[str, str]:
    """The texts of a module of this package and of all that it imports of it."""
    found: dict[str, str] = {}
    left, root = [module], Path(__file__).parent
    while left:
        if (name := left.pop()) not in found:
            found[name] = (root / f"{name}.py").read_text(encoding="utf-8")
            for package, names in _IMPORTED.findall(found[name]):
                home = package.lstrip(".").replace(".", "/")
                inside = [f"{home}/{word.split()[0]}".lstrip("/") for word in names.split(",") if word.strip()]
                left += [home] if (root / f"{home}.py").is_file() else inside
    return dict(sorted(found.items()))


class KeptCode(caching.IndexDataCacheFile):  # type: ignore[misc]
    """The files of a function, of which no two are kept at once. Where files cannot be locked, as numba keeps them."""

    def save(self, key: Any, data: Any) -> None:
        with open(Path(self._cache_path) / "lock", "w") as lock:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            super().save(key, data)


@contextmanager
def in_cache() -> Iterator[None]:
    """What numba compiles, or declares to compile, within is kept in `directory`."""
    before = numba.config.CACHE_DIR, caching.IndexDataCacheFile
    numba.config.CACHE_DIR, caching.IndexDataCacheFile = str(directory()), KeptCode
    try:
        yield
    finally:
        numba.config.CACHE_DIR, caching.IndexDataCacheFile = before
