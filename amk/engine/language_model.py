"""A model with its weights, tokenizer and cache: text in, text out."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from amk.engine.backend import Backend
from amk.engine.choice import choose, log_softmax
from amk.engine.completion import (
    Completion,
    Finish,
    Options,
    Piece,
    Score,
    StopFilter,
    TokenLogprob,
    Usage,
    biased,
)
from amk.engine.tokenizer import Tokenizer
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.bfloat import F32
from amk.schedule_ir.model_spec import ModelSpec

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text that is continued, its tokens, or a conversation ({'role', 'content'}) for the chat template."""


class LanguageModel:
    """What `amk.load` returns. One text is computed at a time; several threads and several streams may take turns.

    spec: the model. notes: warnings of loading (rounded weights, what generation_config.json asks for). suggested:
    temperature, top_k and top_p as generation_config.json has them, for `generate(..., **model.suggested)`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        backend: Backend,
        notes: Sequence[Diagnostic] = (),
        suggested: Mapping[str, Any] | None = None,
    ) -> None:
        self.spec, self.tokenizer, self.notes, self.suggested = spec, tokenizer, tuple(notes), dict(suggested or {})
        self._backend, self._lock, self._open = backend, threading.Lock(), True

    @property
    def context(self) -> int:
        """Positions of the cache: tokens of a prompt and its answer."""
        return self._backend.context

    @property
    def path(self) -> Path:
        return self.tokenizer.path

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt. AMK012 for a conversation where the model has no chat template."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        messages = [each for each in prompt if isinstance(each, Mapping)]
        return self.tokenizer.encode_chat(messages) if messages else [int(each) for each in prompt]  # type: ignore[arg-type]

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """The answer to a prompt; options are the fields of `Options`.

        Raises AMK014 for a prompt that the context cannot hold, AMK015 for options that cannot be served, AMK012 for a
        conversation without a chat template.
        """
        with self.stream(prompt, **options) as stream:
            return stream.run()

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """As `generate`, piece by piece: iterate over it; `cancel` ends it, `completion` is the whole at the end."""
        self._check_open()
        return Stream(self, self.encode(prompt), Options(**options))

    def chat(self, system: str | None = None) -> Chat:
        """A conversation; its turns reuse the cache. AMK012 where the model has no chat template."""
        return Chat(self, system)

    def logits(self, prompt: Prompt) -> F32:
        """f32 [tokens, vocab]: logits after every token of the prompt."""
        return self._locked(self.encode(prompt), 0)

    def score(self, prompt: Prompt, continuations: str | Sequence[str] | Sequence[Sequence[int]]) -> list[Score]:
        """How probable each continuation is behind the prompt. A string is tokenised by itself, without a BOS token.

        Continuations share the prompt, which is computed once. AMK014 for an empty one.
        """
        given = [continuations] if isinstance(continuations, str) else continuations
        begin, found = self.encode(prompt), []
        for each in given:
            tokens = self._plain(each) if isinstance(each, str) else [int(token) for token in each]
            if not tokens:
                raise AmkError(Diagnostic("AMK014", "a continuation has no tokens"))
            table = log_softmax(self._locked([*begin, *tokens[:-1]], len(begin) - 1))
            rows = np.arange(len(tokens))
            greedy = bool((table.argmax(axis=-1) == tokens).all())
            found.append(Score(tuple(tokens), tuple(table[rows, tokens].tolist()), greedy))
        return found

    async def agenerate(self, prompt: Prompt, **options: Any) -> Completion:
        """`generate` in a thread; cancelling the task ends the decoding behind the token that is being computed."""
        import asyncio  # here, because importing it takes as long as a token

        stream = self.stream(prompt, **options)
        try:
            return await asyncio.to_thread(stream.run)
        except asyncio.CancelledError:
            stream.cancel()
            raise

    async def astream(self, prompt: Prompt, **options: Any) -> AsyncIterator[Piece]:
        """`stream` in threads; leaving the loop ends the decoding."""
        import asyncio

        stream = self.stream(prompt, **options)
        try:
            while (piece := await asyncio.to_thread(next, stream, None)) is not None:
                yield piece
        finally:
            stream.cancel()

    def close(self) -> None:
        """Free the device's memory; requests after it are refused with AMK005."""
        if self._open:
            self._open = False
            self._backend.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _plain(self, text: str) -> list[int]:
        return self.tokenizer.process.encode(text, special=False)

    def _locked(self, tokens: Sequence[int], first: int) -> F32:
        with self._lock:
            self._check_open()
            return self._backend.every(tokens, first)

    def _check_open(self) -> None:
        if not self._open:
            raise AmkError(Diagnostic("AMK005", "the model is closed"))

    def _next(
        self, tokens: Sequence[int], answer: Sequence[int], most: int, options: Options
    ) -> tuple[list[tuple[int, TokenLogprob | None]], int]:
        """The next tokens with their logprobs, and how many of `tokens` the cache held."""
        eos = () if options.ignore_eos else self.spec.eos
        with self._lock:
            self._check_open()
            if not options.needs_logits:
                found = self._backend.extend(tokens, most, options.sampling, eos)
                return [(token, None) for token in found], self._backend.cached
            logits, cached = self._backend.logits(tokens), self._backend.cached
        token = choose(biased(logits, options, answer), options.sampling, len(tokens) - 1)
        return [(token, _told(logits, token, options.logprobs))], cached


def _told(logits: F32, token: int, count: int | None) -> TokenLogprob | None:
    if count is None:
        return None
    table = log_softmax(logits)
    best = np.argsort(-table, kind="stable")[:count]
    top = tuple((int(row), float(table[row])) for row in best)
    return TokenLogprob(token, float(table[token]), top)


class Stream:
    """An answer that comes piece by piece. It computes when asked for the next piece, never ahead of a launch."""

    def __init__(self, model: LanguageModel, prompt: list[int], options: Options) -> None:
        self._model, self._prompt, self._options = model, prompt, options
        self._answer: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._ready: list[tuple[int, TokenLogprob | None]] = []
        self._decoder, self._stops = model.tokenizer.stream(), StopFilter(options.stops)
        self._text: list[str] = []
        self._cached = 0
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
        """All pieces, and the completion."""
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
        usage = Usage(len(self._prompt), self._cached, len(self._answer))
        told = tuple(self._logprobs) if self._options.logprobs is not None else None
        return Completion("".join(self._text), tuple(self._answer), self._finish or "cancelled", usage, told)

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
        self._ready, cached = self._model._next(tokens, self._answer, max(most, 1), self._options)
        if not self._answer:
            self._cached = cached

    def _end(self, finish: Finish) -> str:
        """Text that was held back."""
        if self._finish is None:
            self._finish = finish
        return self._stops.push(self._decoder.finish()) + self._stops.finish()


class Chat:
    """A conversation in turns; `messages` is what was said, and may be edited."""

    def __init__(self, model: LanguageModel, system: str | None = None) -> None:
        self._model = model
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]

    def say(self, text: str, **options: Any) -> Completion:
        """The answer to what the user says; both become part of the conversation. Raises what `generate` raises."""
        with self.stream(text, **options) as turn:
            for _ in turn:
                pass
            return turn.completion

    def stream(self, text: str, **options: Any) -> Turn:
        """As `say`, piece by piece. The answer is part of the conversation once the stream has ended."""
        asked = [*self.messages, {"role": "user", "content": text}]
        return Turn(self, asked, self._model.stream(asked, **options))


class Turn:
    """An answer of a conversation, piece by piece."""

    def __init__(self, chat: Chat, asked: list[dict[str, str]], stream: Stream) -> None:
        self._chat, self._asked, self._stream = chat, asked, stream

    def __iter__(self) -> Iterator[Piece]:
        yield from self._stream
        self._chat.messages = [*self._asked, {"role": "assistant", "content": self.completion.text}]

    @property
    def completion(self) -> Completion:
        return self._stream.completion

    def cancel(self) -> None:
        """End the answer where it stands; what came so far stays in the conversation."""
        self._stream.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.cancel()
