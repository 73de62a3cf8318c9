"""Limits of a server, and who may use it."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass

from amk.report.diagnostic import AmkError, Diagnostic

KEYS_VARIABLE = "AMK_API_KEYS"
SHORTEST_KEY = 8
ANYONE = "anyone"


@dataclass(frozen=True)
class Limits:
    """What one request and all of them may take. Times in seconds.

    waiting: requests in the queue, of all clients and of one. body_bytes: of a request. tokens: of one answer.
    body_seconds: until a body has arrived. queue_seconds: until an answer begins. answer_seconds: until it has ended.
    read_seconds: until a client takes what it was sent. grace_seconds: for answers that run when the server is told to
    stop. connections: open at a time.
    """

    waiting: int = 128
    waiting_of_one: int = 128
    body_bytes: int = 1 << 20
    tokens: int = 4096
    body_seconds: float = 30.0
    queue_seconds: float = 600.0
    answer_seconds: float = 600.0
    read_seconds: float = 30.0
    grace_seconds: float = 30.0
    connections: int = 1024


@dataclass(frozen=True)
class Keys:
    """API keys by the name of whoever has one; without any, everyone may ask and is told apart by address."""

    by_name: Mapping[str, str]

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def client(self, authorization: str, address: str) -> str | None:
        """Who asks; None for a wrong key. Takes as long for every wrong key."""
        if not self.by_name:
            return address or ANYONE
        scheme, _, token = authorization.partition(" ")
        client = None
        for name, key in self.by_name.items():
            if hmac.compare_digest(key.encode(), token.strip().encode()):
                client = name
        return client if scheme.lower() == "bearer" else None


def keys_of(environment: Mapping[str, str] = os.environ) -> Keys:
    """The keys in AMK_API_KEYS: `name:key` or `key`, separated by commas. AMK005 for one that is easy to guess."""
    names: dict[str, str] = {}
    for number, part in enumerate(environment.get(KEYS_VARIABLE, "").split(","), 1):
        if not part.strip():
            continue
        name, colon, key = part.strip().partition(":")
        name, key = (name, key) if colon else (f"key {number}", name)
        if len(key) < SHORTEST_KEY or not key.isascii() or name in names:
            message = f"{KEYS_VARIABLE}: entry {number} has a key of fewer than {SHORTEST_KEY} ASCII characters"
            message = f"{KEYS_VARIABLE}: two keys are named {name!r}" if name in names else message
            raise AmkError(Diagnostic("AMK005", message))
        names[name] = key
    return Keys(names)
