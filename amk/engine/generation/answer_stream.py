"""An answer that comes piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from amk.engine.backends.room import Token
from amk.engine.generation.completion import Completion, Finish, Options, Piece, StopFilter, TokenLogprob, Usage
from amk.engine.generation.speculation import Speculation
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.models.model_spec import ModelSpec


class NewTokens(NamedTuple):
    """Tokens with their logprobs; how many of the text before them the cache held; guesses that were verified, and
    those of them that were right."""

    tokens: list[tuple[int, TokenLogprob | None]]
    cached: int
    drafted: int = 0
    accepted: int = 0


class TokenSource(Protocol):
    """What a stream takes its tokens from: a `LanguageModel`."""

    spec: ModelSpec
    tokenizer: Tokenizer

    @property
    def context(self) -> int: ...

    def seat(self) -> AbstractContextManager[Any]: ...

    def speculation(self) -> Speculation | None: ...

    def next_tokens(
        self,
        tokens: Sequence[Token],
        answer: Sequence[int],
        most: int,
        options: Options,
        speculation: Speculation | None = None,
    ) -> NewTokens: ...


class Stream:
    """An answer that comes piece by piece. It computes when asked for the next piece, never ahead of a launch.

    before: the tokens of the prompt where the answer continues its text, so that a space between them is kept.
    """

    def __init__(
        self, model: TokenSource, prompt: Sequence[Token], options: Options, before: Sequence[int] = ()
    ) -> None:
        self._model, self._prompt, self._options = model, prompt, options
        self._answer: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._ready: list[tuple[int, TokenLogprob | None]] = []
        self._decoder, self._stops = model.tokenizer.stream(before), StopFilter(options.stops)
        self._speculation = model.speculation()
        self._text: list[str] = []
        self._cached = self._steps = self._drafted = self._accepted = 0
        self._finish: Finish | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        """The next piece; StopIteration after the last. Raises what `generate` raises."""
        if self._finish is not None:
            raise StopIteration
        if not self._ready:
            self._compute()
        token, logprob = self._ready.pop(0)
        self._answer.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        ended = not self._options.ignore_eos and token in self._model.spec.eos
        text = "" if ended else self._stops.push(self._decoder.push(token))
        if self._stops.stopped or ended:
            text += self._end("stop")
        elif len(self._answer) >= self._limit:
            text += self._end("length")
        self._text.append(text)
        return Piece(text, token, logprob)

    def run(self) -> Completion:
        """All pieces, and the completion. Waits for a seat before the first, so that no other whole answer takes the
        cache between two tokens."""
        with self._model.seat():
            for _ in self:
                pass
        return self.completion

    def cancel(self) -> None:
        """End the answer where it stands; from any thread. Nothing happens if it has ended."""
        if self._finish is None:
            self._finish = "cancelled"

    @property
    def completion(self) -> Completion:
        """What came so far; its finish is 'cancelled' before the end."""
        counts = self._steps, self._drafted, self._accepted
        usage = Usage(len(self._prompt), self._cached, len(self._answer), *counts)
        logprobs = tuple(self._logprobs) if self._options.logprobs is not None else None
        return Completion("".join(self._text), tuple(self._answer), self._finish or "cancelled", usage, logprobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    @property
    def _limit(self) -> int:
        return min(self._options.max_tokens, self._model.context - len(self._prompt) + 1)

    def _compute(self) -> None:
        most = self._limit - len(self._answer)
        tokens = [*self._prompt, *self._answer]
        found = self._model.next_tokens(tokens, self._answer, max(most, 1), self._options, self._speculation)
        if not self._answer:
            self._cached = found.cached
        self._ready = found.tokens
        self._steps += len(found.tokens) - found.accepted
        self._drafted += found.drafted
        self._accepted += found.accepted

    def _end(self, finish: Finish) -> str:
        """Text that was held back; a stop string may be in it."""
        text = self._stops.push(self._decoder.finish()) + self._stops.finish()
        if self._finish is None:
            self._finish = "stop" if self._stops.stopped else finish
        return text
