"""The end of an answer, where a decoder sets bytes free that it held back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amk.engine.generation.answer_stream import NewTokens, Stream
from amk.engine.generation.completion import Options


class Decoder:
    """Shows a token's character when the next one is there."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, token: int) -> str:
        shown, self._held = self._held, chr(token)
        return shown

    def finish(self) -> str:
        return self._held


def stream(stop: str) -> Stream:
    model: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(stream=lambda _: Decoder()),
        spec=SimpleNamespace(eos=()),
        context=8,
        speculation=lambda: None,
        next_tokens=lambda tokens, *_: NewTokens([(ord("ab"[len(tokens) - 1]), None)], 0),
    )
    return Stream(model, [1], Options(max_tokens=2, stop=stop))


@pytest.mark.parametrize(("stop", "text", "finish"), [("b", "a", "stop"), ("ab", "", "stop"), ("c", "ab", "length")])
def test_a_stop_string_in_what_the_end_sets_free_ends_the_answer(stop: str, text: str, finish: str) -> None:
    answer = stream(stop)
    assert "".join(piece.text for piece in answer) == text
    assert (answer.completion.text, answer.completion.finish) == (text, finish)
