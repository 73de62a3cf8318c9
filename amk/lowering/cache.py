"""Compiled kernels on disk, keyed by a hash of everything that determines them.

An entry is one JSON file with base64 blobs and a seal over its key and content: it is replaced atomically, two
processes may write the same key, and an entry that was truncated, edited, renamed or sealed elsewhere is a miss, never
an error. So a cubin from here is the one that the compiler made of the PTX beside it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from amk.lowering.seal import is_sealed, seal
from amk.report.diagnostic import AmkError
from amk.report.json_file import read_bytes

_SCHEMA = 2
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class CacheEntry:
    """The outputs of one compilation, before anything is read from them."""

    cubin: bytes
    ptx: str
    log: str
    lowered_names: dict[str, str]


def default_directory() -> Path:
    """Where entries live unless told otherwise: the user's cache directory."""
    return Path(platformdirs.user_cache_dir("amk")) / "cubin"


def cache_key(parts: list[str]) -> str:
    """sha256 of a list of strings; each is preceded by its length, so no two lists collide by concatenation."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def load(directory: Path, key: str) -> CacheEntry | None:
    """The entry of `key`, or None if there is none or its seal is not that of its key and content."""
    try:
        record = json.loads(read_bytes(directory / f"{key}.json", MOST_BYTES))
        content = record["content"]
        if record["schema"] != _SCHEMA or not is_sealed(_sealed(key, content), record["seal"]):
            return None
        return CacheEntry(
            cubin=base64.b64decode(content["cubin"], validate=True),
            ptx=content["ptx"],
            log=content["log"],
            lowered_names=dict(content["lowered_names"]),
        )
    except (AmkError, KeyError, TypeError, ValueError, RecursionError):
        return None


def store(directory: Path, key: str, entry: CacheEntry) -> None:
    """Write an entry. A directory that cannot be written costs only the time of the next compilation."""
    content = {
        "cubin": base64.b64encode(entry.cubin).decode(),
        "ptx": entry.ptx,
        "log": entry.log,
        "lowered_names": entry.lowered_names,
    }
    text = json.dumps({"schema": _SCHEMA, "seal": seal(_sealed(key, content)), "content": content})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{key[:16]}", suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, directory / f"{key}.json")
    except OSError:
        Path(temporary).unlink(missing_ok=True)


def _sealed(key: str, content: object) -> str:
    return json.dumps([key, content], sort_keys=True)
