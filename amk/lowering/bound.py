"""Which code of which schedule this process knows to be bound: made and read back here, or sealed by one that did."""

from __future__ import annotations

import hashlib

_BOUND: set[tuple[str, str]] = set()
"""(hash of the schedule, hash of PTX or cubin)."""


def code_hash(code: bytes | str) -> str:
    """sha256 of a cubin (bytes) or PTX (text)."""
    return hashlib.sha256(code.encode() if isinstance(code, str) else code).hexdigest()


def note(digest: str, *codes: bytes | str) -> None:
    """The codes are bound to the schedule with that hash."""
    _BOUND.update((digest, code_hash(code)) for code in codes)


def is_noted(digest: str, code: bytes | str) -> bool:
    return (digest, code_hash(code)) in _BOUND
