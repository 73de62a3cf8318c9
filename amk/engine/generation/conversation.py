"""Conversations in turns; what was said before is in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from amk.engine.generation.answer_stream import Stream
from amk.engine.generation.completion import Completion, Piece


class Answering(Protocol):
    """What answers a conversation: a `LanguageModel`."""

    def stream(self, prompt: Sequence[Mapping[str, str]], **options: Any) -> Stream: ...


class Chat:
    """A conversation in turns; `messages` is what was said, and may be edited."""

    def __init__(self, model: Answering, system: str | None = None) -> None:
        self._model = model
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]

    def say(self, text: str, **options: Any) -> Completion:
        """The answer to what the user says; both become part of the conversation. Raises what `generate` raises."""
        with self.stream(text, **options) as turn:
            return turn.run()

    def stream(self, text: str, **options: Any) -> Turn:
        """As `say`, piece by piece. The answer is part of the conversation once the stream has ended."""
        asked = [*self.messages, {"role": "user", "content": text}]
        return Turn(self, asked, self._model.stream(asked, **options))


class Turn:
    """An answer of a conversation, piece by piece."""

    def __init__(self, chat: Chat, messages: list[dict[str, str]], stream: Stream) -> None:
        self._chat, self._messages, self._stream = chat, messages, stream

    def __iter__(self) -> Iterator[Piece]:
        yield from self._stream
        self._keep()

    def run(self) -> Completion:
        """The whole answer."""
        completion = self._stream.run()
        self._keep()
        return completion

    @property
    def completion(self) -> Completion:
        return self._stream.completion

    def cancel(self) -> None:
        """End the answer where it stands; what came so far, if anything, stays in the conversation."""
        self._stream.cancel()
        if self.completion.tokens:
            self._keep()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, Exception):  # the loop was left, also by Ctrl-C
            self.cancel()
        else:
            self._stream.cancel()

    def _keep(self) -> None:
        self._chat.messages = [*self._messages, {"role": "assistant", "content": self.completion.text}]
