"""Text to tokens and back, with the chat template that belongs to the weights.

The vocabulary comes from the checkpoint: `tokenizer.json` of a Hugging Face directory, or the metadata of a GGUF file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from amk.engine.refusal import unsupported
from amk.engine.tokenizers.chat import render_chat
from amk.engine.tokenizers.streaming import StreamDecoder
from amk.engine.tokenizers.tokenizer_process import TokenizerProcess

LONGEST_CHARACTER = 4
"""Bytes of one in UTF-8."""


@dataclass(frozen=True)
class Tokenizer:
    """`prefix` is put before a plain prompt (the BOS of a GGUF file; a tokenizer.json does it by itself).

    A process with limits turns text into tokens and back. It starts when it is first needed, or by `begin`.
    """

    backend: Backend
    path: Path
    prefix: tuple[int, ...] = ()
    chat_template: str | None = None
    tool_template: str | None = None
    """For conversations with tools, where a model has one for them."""
    special: Mapping[str, str] = field(default_factory=dict)
    normalizer: Any = None
    """Of a tokenizer.json. `backend` is without it, because it comes with the weights and is not trusted."""

    @cached_property
    def process(self) -> TokenizerProcess:
        return TokenizerProcess(self.backend, self.path, normalizer=self.normalizer)

    def begin(self) -> None:
        """Start that process, if it is not there: it loads the vocabulary while nobody waits for it."""
        _ = self.process

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
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
