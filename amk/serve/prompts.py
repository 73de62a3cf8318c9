"""From the messages or texts of a request to tokens, apart from the tokenizer that decodes answers.

A text that the tokenizer does not stand ends the process that it runs in; the next request starts another one.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.report.diagnostic import AmkError

AT_ONCE = 2
"""Templates that are rendered at a time, each in a process."""


def with_objects(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of their calls as objects, where they are JSON texts of such."""

    def converted(call: Any) -> Any:
        try:
            arguments = json.loads(call["function"]["arguments"])
        except (TypeError, LookupError, ValueError, RecursionError):
            return call
        return (
            {**call, "function": {**call["function"], "arguments": arguments}} if isinstance(arguments, dict) else call
        )

    calls = [message.get("tool_calls") for message in messages]
    return [
        {**message, "tool_calls": [converted(call) for call in own]} if isinstance(own, list) else dict(message)
        for message, own in zip(messages, calls, strict=True)
    ]


class Prompts:
    """Thread safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._original = tokenizer
        self._tokenizer = replace(tokenizer)
        self._one, self._some = threading.Lock(), threading.Semaphore(AT_ONCE)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, more: Mapping[str, Any] | None
    ) -> list[int]:
        """Tokens of a conversation. AMK012 where the template or the tokenizer refuses it.

        Arguments of calls come as texts. Templates are written for objects, but for a few that take texts only.
        """
        forms = [messages] if (objects := with_objects(messages)) == messages else [objects, messages]
        with self._some:
            for form in forms[:-1]:
                with contextlib.suppress(AmkError):
                    return self._encoded(partial(Tokenizer.encode_chat, messages=form, tools=tools, more=more))
            return self._encoded(partial(Tokenizer.encode_chat, messages=forms[-1], tools=tools, more=more))

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
