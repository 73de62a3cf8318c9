"""Text to tokens and back, with the chat template that belongs to the weights.

The vocabulary comes from the checkpoint: `tokenizer.json` of a Hugging Face directory, or the metadata of a GGUF file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from amk.engine.refusal import bad_weights, unsupported
from amk.engine.tokenizers.chat import render_chat
from amk.engine.tokenizers.streaming import StreamDecoder
from amk.engine.tokenizers.tokenizer_process import Source, TokenizerProcess

LONGEST_CHARACTER = 4
"""Bytes of one in UTF-8."""


@dataclass(frozen=True)
class Tokenizer:
    """`prefix` is put before a plain prompt (the BOS of a GGUF file; a tokenizer.json does it by itself).

    A process with limits reads the vocabulary and turns text into tokens and back. It starts when it is first needed,
    or by `begin`.
    """

    source: Source
    path: Path
    prefix: tuple[int, ...] = ()
    chat_template: str | None = None
    tool_template: str | None = None
    """For conversations with tools, where a model has one for them."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Special tokens beside those of the source, by the names that templates call them."""

    @cached_property
    def process(self) -> TokenizerProcess:
        return TokenizerProcess(self.source, self.path)

    @cached_property
    def backend(self) -> Backend:
        """The vocabulary in this process, without what normalises texts."""
        return self.source.read()

    @cached_property
    def text(self) -> str:
        """As a tokenizer.json, with added tokens and what normalises texts."""
        normalizer = json.loads(self.source.content).get("normalizer")
        return json.dumps(json.loads(self.backend.to_str()) | {"normalizer": normalizer})

    def begin(self) -> None:
        """Start that process, if it is not there: it loads the vocabulary while nobody waits for it."""
        _ = self.process

    def check(self, vocab: int | None) -> None:
        """Wait until it has. AMK012 or AMK013 for one that does not stand it, and where it has ids that `vocab` rows of
        an embedding do not cover."""
        size = self.size
        if vocab is not None and size > vocab:
            raise bad_weights(self.path, f"the tokenizer has token {size - 1:,}, the embedding has {vocab:,} rows")

    def encode(self, text: str) -> list[int]:
        """Tokens of a plain prompt, with the BOS token if the model wants one."""
        return [*self.prefix, *self.process.encode(text, special=True)]

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the template writes it, up to where the assistant answers.

        tools: descriptions of functions. more: further values for the template. AMK012 if there is no usable template,
        or one that says nothing about tools or calls of tools is given some.
        """
        template = self.tool_template if tools and self.tool_template is not None else self.chat_template
        if template is None:
            raise unsupported(
                self.path,
                "this model has no chat template",
                help="give the prompt as plain text (`amk generate --plain`): a base model continues it",
            )
        if tools and "tools" not in template:
            raise unsupported(
                self.path, "the chat template of this model has no place for tools", help="leave the tools out"
            )
        if any(message.get("tool_calls") for message in messages) and "tool_calls" not in template:
            raise unsupported(
                self.path, "the chat template of this model has no place for calls of tools", help="leave them out"
            )
        values = {**self.special, **({"tools": list(tools)} if tools else {})}
        return render_chat(template, messages, {**values, **(more or {})})

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Tokens of `chat_text`."""
        return self.process.encode(self.chat_text(messages, tools, more), special=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens` without the special ones; tokens outside the vocabulary have none."""
        return self.process.decode(tokens)

    def stream(self, before: Sequence[int] = ()) -> StreamDecoder:
        """A decoder for tokens that arrive one by one. before: tokens of a text that they continue."""
        return StreamDecoder(self.decode, self._end_of(before))

    def encode_behind(self, before: Sequence[int], text: str) -> list[int]:
        """Tokens of a text that continues the one of `before`, without special ones.

        Tokenizers that put a space before every text, as those of SentencePiece do, put none here.
        """
        own, end = self.process.encode(text, special=False), self._end_of(before)
        if not end or self._continues(end, own, text):
            return own
        line = self.process.encode("\n", special=False)
        whole = self.process.encode(f"\n{text}", special=False)
        rest = whole[len(line) :]
        return rest if whole[: len(line)] == line and self._continues(end, rest, text) else own

    def _continues(self, before: Sequence[int], tokens: Sequence[int], text: str) -> bool:
        return self.decode([*before, *tokens]) == self.decode(before) + text

    def _end_of(self, tokens: Sequence[int]) -> list[int]:
        """The fewest last tokens whose text is whole characters; none if the last four have no such text."""
        ends = [list(tokens[-count:]) for count in range(1, min(len(tokens), LONGEST_CHARACTER) + 1)]
        texts = ((end, self.decode(end)) for end in ends)
        return next((end for end, text in texts if text and "\N{REPLACEMENT CHARACTER}" not in text), [])

    @property
    def size(self) -> int:
        """One more than the largest token id."""
        return int(self.process.facts()["size"])

    @cached_property
    def special(self) -> dict[str, str]:
        """Special tokens by the names that templates call them."""
        return {**self.process.facts()["special"], **self.named}
