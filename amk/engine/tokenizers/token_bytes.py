"""What single tokens stand for, in bytes: a character may be spread over several of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

SPACE = "\u2581"
"""Stands for a space in vocabularies of SentencePiece."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bytes_of_tokens(backend: Backend) -> Callable[[int], bytes]:
    """From a token to the bytes of its text; none for one outside the vocabulary. Special tokens have their names."""
    added = backend.get_added_tokens_decoder()
    kinds = set(_kinds(json.loads(backend.decoder.__getstate__()))) if backend.decoder is not None else set()
    spelled = _byte_level if "ByteLevel" in kinds else _fallback if "ByteFallback" in kinds else str.encode

    def bytes_of(token: int) -> bytes:
        text = backend.id_to_token(token)
        return b"" if text is None else text.encode() if token in added else spelled(text)

    return bytes_of


def _kinds(decoder: Mapping[str, Any]) -> Iterator[str]:
    """Types of a decoder and those in it."""
    yield str(decoder.get("type"))
    for inner in decoder.get("decoders", ()):
        yield from _kinds(inner)


def _byte_level(text: str) -> bytes:
    """GPT-2's spelling of bytes as printable characters; other characters stand for themselves."""
    return b"".join(bytes([_BYTES[each]]) if each in _BYTES else each.encode() for each in text)


def _fallback(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()


def _printable() -> dict[str, int]:
    """Printable Latin-1 characters are their own bytes; the others, in order, are the characters from 256 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _printable()
