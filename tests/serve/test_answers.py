"""Answers in the words of OpenAI's interface."""

from __future__ import annotations

from amk.engine.generation.completion import Completion, TokenLogprob, Usage
from amk.serve.answers import Frame

BYTES = [b"A", b"\xc3", b"\xc3\xa9", b"\xc4", b"A"]


def test_no_alternative_of_a_completion_hides_behind_the_name_of_another() -> None:
    top = ((1, -0.5), (3, -1.0), (0, -2.0), (4, -3.0))
    answer = Completion("", (1, 2), "stop", Usage(1, 0, 2), (TokenLogprob(1, -0.5, top), TokenLogprob(2, -1.0)))
    logprobs = Frame("completion", "tiny", BYTES.__getitem__).whole([answer])["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc3", "\u00e9"]
    assert logprobs["top_logprobs"] == [{"bytes:\\xc3": -0.5, "bytes:\\xc4": -1.0, "A": -2.0}, {}]
