"""Streamed text joins to the decoded text, and no part shows an unfinished character."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from amk.engine.tokenizers.streaming import StreamDecoder


def as_bytes(tokens: Sequence[int]) -> str:
    """A byte-level vocabulary of 256 tokens."""
    return bytes(tokens).decode("utf-8", "replace")


def stripping(tokens: Sequence[int]) -> str:
    """A decoder that drops a leading space, as sentencepiece ones do."""
    return as_bytes(tokens).removeprefix(" ")


@given(st.text(max_size=40))
def test_valid_text_is_never_shown_half(text: str) -> None:
    stream = StreamDecoder(as_bytes)
    parts = [stream.push(byte) for byte in text.encode("utf-8", "replace")]
    assert "".join(parts) + stream.finish() == text.encode("utf-8", "replace").decode()
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)


@given(st.binary(max_size=50))
def test_any_bytes_join_to_the_decoded_text(data: bytes) -> None:
    stream = StreamDecoder(as_bytes)
    assert "".join([stream.push(byte) for byte in data]) + stream.finish() == as_bytes(data)


def test_a_stripped_leading_space_is_stripped_once() -> None:
    stream = StreamDecoder(stripping)
    parts = [stream.push(byte) for byte in b" one  two three "]
    assert "".join(parts) == "one  two three "


def test_text_appears_with_the_token_that_completes_it() -> None:
    stream = StreamDecoder(as_bytes)
    assert [stream.push(byte) for byte in "aé€".encode()] == ["a", "", "é", "", "", "€"]
    assert stream.push(0xE2) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_endless_broken_bytes_are_shown_with_bounded_work() -> None:
    longest = 0

    def decode(tokens: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return as_bytes(tokens)

    stream = StreamDecoder(decode)
    shown = "".join(stream.push(0xFF) for _ in range(1000)) + stream.finish()
    assert shown == "\N{REPLACEMENT CHARACTER}" * 1000
    assert longest < 200
