"""What ties a compilation kept on disk to a process that really ran the compiler.

Property: a sealed text was sealed with the key of this user on this machine, or by this process. Whoever can write the
    cache directory alone (one shared between machines, restored from elsewhere, or edited by hand) cannot seal.
Assumptions: who reads the user's private data directory could also edit this program; HMAC-SHA256 is unforgeable.
Algorithm: the key is 32 random bytes in a file that the user owns and nobody else reads, made when it is first needed.
    Where it cannot be kept, or is another user's (root may read it), the process has a key of its own, and what other
    processes sealed is compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

import platformdirs

_BYTES = 32


def key_file() -> Path:
    """Where the key lives: with the user's data, never with the cache."""
    return Path(platformdirs.user_data_dir("amk")) / "compiled.key"


def seal(text: str) -> str:
    """The seal of a text, in hexadecimal."""
    return hmac.new(_key(key_file()), text.encode(), hashlib.sha256).hexdigest()


def is_sealed(text: str, signature: object) -> bool:
    """Whether `signature` is the seal of this text."""
    return isinstance(signature, str) and signature.isascii() and hmac.compare_digest(seal(text), signature)


@functools.cache
def _key(path: Path) -> bytes:
    try:
        if not path.exists():
            _write_once(path, secrets.token_bytes(_BYTES))
        found = path.stat()
        private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
        kept = path.read_bytes()
        return kept if private and len(kept) == _BYTES else secrets.token_bytes(_BYTES)
    except OSError:
        return secrets.token_bytes(_BYTES)


def _write_once(path: Path, key: bytes) -> None:
    """Complete or not at all, and never over another process's key. mkstemp's files are the user's alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".key")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        Path(temporary).unlink(missing_ok=True)
