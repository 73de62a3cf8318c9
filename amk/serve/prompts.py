"""From the messages or texts of a request to tokens, apart from the tokenizer that decodes answers.

A text that the tokenizer does not stand ends the process that it runs in; the next request starts another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from amk.engine.tokenizers.tokenizer import Tokenizer

AT_ONCE = 2
"""Templates that are rendered at a time, each in a process."""


class Prompts:
    """Thread safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._original = tokenizer
        self._tokenizer = replace(tokenizer)
        self._one, self._some = threading.Lock(), threading.Semaphore(AT_ONCE)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, more: Mapping[str, Any] | None
    ) -> list[int]:
        """Tokens of a conversation. AMK012 where the template or the tokenizer refuses it."""
        with self._some:
            return self._encoded(lambda tokenizer: tokenizer.encode_chat(messages, tools=tools, more=more))

    def text(self, text: str) -> list[int]:
        """Tokens of a plain prompt. AMK012 where the tokenizer refuses it."""
        return self._encoded(lambda tokenizer: tokenizer.encode(text))

    def _encoded(self, encode: Callable[[Tokenizer], list[int]]) -> list[int]:
        tokenizer = self._tokenizer
        try:
            return encode(tokenizer)
        finally:
            with self._one:
                if tokenizer is self._tokenizer and not tokenizer.process.usable:
                    self._tokenizer = replace(self._original)
