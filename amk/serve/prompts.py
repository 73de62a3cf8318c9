"""From the messages or texts of a request to tokens, apart from the tokenizer that decodes answers.

A text that the tokenizer does not stand ends the process that it runs in; the next request starts another one.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from amk.engine.tokenizers.chat import REASONING
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.report.diagnostic import AmkError

AT_ONCE = 2
"""Templates that are rendered at a time, each in a process."""
HEEDED = {"role", "content", "tool_calls", "tool_call_id"}
"""Keys of a message that every template may get."""
_OF_A_MESSAGE = r"\b(?:m|msg|message|messages\[[^\]]{0,40}\])(?:\.(?:get\()?|\[)\s*['\"]?(\w+)"
"""A key that the text of a template reads of a message, which templates call by one of these names."""


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


def unread(template: str, messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any] | None) -> str | None:
    """The first key of a message, or of the further values, that the template's text does not read. What is empty says
    nothing."""
    words, read = set(re.findall(r"\w+", template)), HEEDED.union(re.findall(_OF_A_MESSAGE, template))
    if not words.isdisjoint(REASONING):
        read.update(REASONING)
    keys = [(f"messages.{index}", key, read) for index, message in enumerate(messages)
            for key, value in message.items() if value not in (None, [], {})]  # fmt: skip
    keys += [("chat_template_kwargs", key, words) for key in more or {}]
    return next((f"{place}.{key}" for place, key, known in keys if key not in known), None)


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

    def unread(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, more: Mapping[str, Any] | None
    ) -> str | None:
        """What the template would ignore; None without a template."""
        template = (tools and self._original.tool_template) or self._original.chat_template
        return None if template is None else unread(template, messages, more)

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
