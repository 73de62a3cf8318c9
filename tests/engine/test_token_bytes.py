"""Bytes of tokens join to the text that the tokenizer itself decodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from amk.engine.tokenizers.open_tokenizer import open_tokenizer
from amk.engine.tokenizers.token_bytes import bytes_of_tokens


def test_bytes_of_a_real_vocabulary_join_to_the_text(smollm2_path: Path) -> None:
    tokenizer = open_tokenizer(smollm2_path)
    found = bytes_of_tokens(tokenizer.backend)
    for text in ("Hello,  world\n\tétudes 日本語 \U0001f600", *map(chr, range(1, 0x180))):
        tokens = tokenizer.process.encode(text, special=False)  # a few control characters have none
        assert b"".join(map(found, tokens)).decode() == tokenizer.decode(tokens)
    assert b"".join(map(found, tokenizer.process.encode("A<|im_end|>", special=False))) == b"A<|im_end|>"
    assert found(10**6) == b""


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (
            decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]),
            [b" a", b"\xe2"],
        ),
        (decoders.Fuse(), ["\u2581a".encode(), b"<0xE2>"]),
    ],
)
def test_other_spellings(decoder: decoders.Decoder, expected: list[bytes]) -> None:
    backend = Tokenizer(models.WordLevel({"\u2581a": 0, "<0xE2>": 1}, unk_token="a"))
    backend.decoder = decoder
    assert list(map(bytes_of_tokens(backend), (0, 1))) == expected
