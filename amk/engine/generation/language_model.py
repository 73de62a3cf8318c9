"""A model with its weights, tokenizer and cache: text in, text out."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.backend import Backend, Writer
from amk.engine.backends.choice import choose, log_softmax
from amk.engine.backends.room import Token, check_room, tokens_of
from amk.engine.generation.answer_stream import NewTokens, Stream
from amk.engine.generation.completion import Completion, Options, Perplexity, Piece, Score, TokenLogprob, biased
from amk.engine.generation.conversation import Chat
from amk.engine.generation.grammar import Grammars
from amk.engine.generation.prefix_tree import PrefixTree
from amk.engine.generation.restriction import restricted
from amk.engine.generation.scoring import perplexity_of, scores_of
from amk.engine.generation.speculation import Chosen, Speculating, Speculation, Verifier
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError, Diagnostic
from amk.weights.bfloat import F32

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message] | NDArray[np.floating[Any]]
"""Text that is continued, its tokens, or a conversation ({'role', 'content'}) for the chat template.

With the device cpu or states=True also embeddings [tokens, hidden size] in the place of those that the model has for
its tokens.
"""


class LanguageModel:
    """What `amk.load` returns. One text is computed at a time, or as many as it was loaded for (`batch`).

    Whole answers (`generate`, `agenerate`, `Chat.say`) that several threads or tasks ask for beyond that wait for each
    other. Streams take turns token by token; beyond as many they read their texts again at every turn.

    spec: the model. notes: warnings of loading (rounded weights, what generation_config.json asks for). suggested:
    temperature, top_k and top_p as generation_config.json has them, for `generate(..., **model.suggested)`.
    speculating: guesses what comes next, for the backend to verify.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        backend: Backend,
        notes: Sequence[Diagnostic] = (),
        suggested: Mapping[str, Any] | None = None,
        speculating: Speculating | None = None,
    ) -> None:
        self.spec, self.tokenizer, self.notes, self.suggested = spec, tokenizer, tuple(notes), dict(suggested or {})
        self.grammars = Grammars(tokenizer, spec)
        self._backend, self._speculating = backend, speculating
        self._verifier = backend if isinstance(backend, Verifier) else None
        several = getattr(backend, "concurrent", False)
        self._lock: AbstractContextManager[Any] = nullcontext() if several else threading.Lock()
        self._seats, self._thread = threading.BoundedSemaphore(self.sequences), threading.local()
        self._open = True

    @property
    def context(self) -> int:
        """Positions of the cache: tokens of a prompt and its answer."""
        return self._backend.context

    @property
    def sequences(self) -> int:
        """Texts that are computed at once."""
        return int(getattr(self._backend, "sequences", 1))

    @property
    def path(self) -> Path:
        return self.tokenizer.path

    def encode(self, prompt: Prompt) -> list[Token]:
        """Tokens of a prompt. AMK012 for a conversation where the model has no chat template, AMK014 for what is no
        prompt."""
        if isinstance(prompt, str):
            return [*self.tokenizer.encode(prompt)]
        if isinstance(prompt, np.ndarray) and prompt.ndim == 2:
            with np.errstate(over="ignore"):
                rows = prompt.astype(np.float32)
            if not np.isfinite(rows).all():
                raise AmkError(Diagnostic("AMK015", "the embeddings of the prompt are not all finite in float32"))
            return [row.tobytes() for row in rows]
        parts: Any = prompt
        if isinstance(prompt, Iterable) and not isinstance(prompt, bytes | Mapping):
            parts = [*prompt]
            if parts and all(isinstance(part, Mapping) for part in parts):
                return [*self.tokenizer.encode_chat(parts)]
        return [*tokens_of(parts)]

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """The answer to a prompt; options are the fields of `Options`.

        Raises AMK014 for a prompt that the context cannot hold, AMK015 for options that cannot be served, AMK012 for a
        conversation without a chat template; TypeError for an option that is no field.
        """
        with self.stream(prompt, **options) as stream:
            return stream.run()

    def generate_all(self, prompts: Sequence[Prompt], **options: Any) -> list[Completion]:
        """The answers to several prompts, in their order; as many at once as `sequences` says. options: of `generate`.

        Raises what `generate` raises, once no other answer is computed any more.
        """
        if isinstance(prompts, str):
            raise AmkError(Diagnostic("AMK015", "prompts is one text, it must be a sequence of them"))
        streams = [self.stream(prompt, **options) for prompt in prompts]
        with ThreadPoolExecutor(self.sequences, "amk-texts") as pool:
            tasks = [pool.submit(stream.run) for stream in streams]
            try:
                return [task.result() for task in tasks]
            except BaseException:
                for stream in streams:
                    stream.cancel()
                raise

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """As `generate`, piece by piece: iterate over it; `cancel` ends it, `completion` is the whole at the end."""
        self._check_open()
        tokens, before = self._read(prompt)
        asked = restricted(Options.of(options), self.grammars, partial(self.tokenizer.encode_behind, before))
        return Stream(self, tokens, asked, before)

    def chat(self, system: str | None = None) -> Chat:
        """A conversation; its turns reuse the cache. AMK012 where the model has no chat template."""
        return Chat(self, system)

    def logits(self, prompt: Prompt, *, last: bool = False) -> F32:
        """f32 [tokens, vocab]: logits after every token of the prompt; last: f32 [vocab], after its last one only."""
        tokens = self.encode(prompt)
        with self._lock:
            self._check_open()
            return self._backend.logits(tokens) if last else self._backend.every(tokens, 0)

    def hidden(self, prompt: Prompt) -> F32:
        """f32 [tokens, hidden size]: states behind the last norm, which lm_head turns into logits.

        AMK015 unless the device is the cpu, or the model was loaded with states=True.
        """
        with self._lock:
            self._check_open()
            return self._backend.states(self.encode(prompt))

    def embeddings(self, tokens: Sequence[int]) -> F32:
        """f32 [tokens, hidden size]: the model's embeddings. AMK014 for a token that it does not have, AMK015 as
        `hidden` does."""
        with self._lock:
            self._check_open()
            return self._backend.embeddings(tokens_of(tokens))

    def lend(self, tokens: Sequence[Token], write: Writer) -> bool:
        """As `Backend.lend`: somebody else writes the keys and values of a text's begin. AMK014 for one that the cache
        cannot hold."""
        with self._lock:
            self._check_open()
            check_room(tokens, self.spec.vocab, self.context)
            return self._backend.lend(tokens, write)

    def score(self, prompt: Prompt, continuations: str | Sequence[str] | Sequence[Sequence[int]]) -> list[Score]:
        """How probable each continuation is behind the prompt. A string is tokenised without a BOS token, as it stands
        behind a text, and by itself behind anything else.

        What continuations share is computed once, the prompt and their own prefixes. AMK014 for one
        that is empty or too long.
        """
        if not isinstance(continuations, Iterable):
            raise AmkError(Diagnostic("AMK015", f"continuations is {continuations!r}, it must be a text, or several"))
        texts = [continuations] if isinstance(continuations, str) else continuations
        begin, before = self._read(prompt)
        behind = partial(self.tokenizer.encode_behind, before)
        tokens = [behind(each) if isinstance(each, str) else tokens_of(each) for each in texts]
        with self._lock:
            self._check_open()
            return scores_of(self._backend, self.spec, begin, tokens)

    def perplexity(
        self, text: str | Sequence[int], *, window: int | None = None, stride: int | None = None
    ) -> Perplexity:
        """How well the model predicts a text, which begins with the BOS token if the model wants one, or given tokens.

        A window of `window` tokens begins at every `stride`-th token. It predicts the tokens that no window before it
        predicted, except its own first one. With a stride below the window, it predicts every token but the first of
        the text once; behind the first window a token has at least `window - stride` tokens before it. A stride equal
        to the window makes disjoint windows. Default: a window of 1,024 tokens or of the context, and half of it as
        stride. Cost: the text is read window / stride times.

        AMK014 for fewer than two tokens or an unknown one, AMK015 for a window or stride that cannot be.
        """
        tokens = self.tokenizer.encode(text) if isinstance(text, str) else tokens_of(text)
        with self._lock:
            self._check_open()
            return perplexity_of(self._backend, self.spec, tokens, window, stride)

    def restricted(self, options: Options) -> Options:
        """Options whose `mask` does what their schema, expression, grammar or choices ask for.

        AMK015 for one that cannot be used, AMK019 where llguidance is needed and not installed.
        """
        return restricted(options, self.grammars, partial(self.tokenizer.encode_behind, ()))

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

    @contextmanager
    def seat(self) -> Iterator[None]:
        """Held while a whole answer is computed: as many as `sequences` at a time. A thread that holds one, as a mask
        that asks the model does, needs no other."""
        if getattr(self._thread, "seated", False):
            yield
            return
        with self._seats:
            self._thread.seated = True
            try:
                yield
            finally:
                self._thread.seated = False

    def speculation(self) -> Speculation | None:
        """Guesses for a text that begins; None where none are made."""
        return None if self._speculating is None else self._speculating.text()

    def next_tokens(
        self,
        tokens: Sequence[Token],
        answer: Sequence[int],
        most: int,
        options: Options,
        speculation: Speculation | None = None,
    ) -> NewTokens:
        """At most `most` next tokens.

        tokens: the prompt and what was answered so far; answer: the latter alone; speculation: of this text. `stream`
        is for applications.
        """
        eos = () if options.ignore_eos else self.spec.eos
        with self._lock:
            self._check_open()
            if speculation is not None and not options.needs_logits:
                launched = speculation.launched(tokens, most, options.sampling, eos)
                if launched is not None:
                    added, *counts = launched
                    return NewTokens([(token, None) for token in added], self._backend.cached, *counts)
            if speculation is not None and (tree := speculation.tree(tokens, most)) is not None:
                found = self._followed(speculation, tree, tokens, answer, options)
                return NewTokens(found, self._backend.cached, len(tree.tokens), len(found) - 1)
            if speculation is not None:
                guesses = speculation.guessed(tokens, most, options.sampling)
                chosen = self._choices(guesses.text, len(tokens) - 1, answer, options)
                found = speculation.accepted(guesses, chosen, eos)
                return NewTokens(found, self._backend.cached, len(guesses.tokens), len(found) - 1)
            if options.needs_logits:
                return NewTokens(list(self._choices(tokens, len(tokens) - 1, answer, options)), self._backend.cached)
            plain = self._backend.extend(tokens, most, options.sampling, eos)
            return NewTokens([(token, None) for token in plain], self._backend.cached)

    def _choices(
        self, tokens: Sequence[Token], first: int, answer: Sequence[int], options: Options
    ) -> Iterator[Chosen]:
        """What is chosen behind token `first` and behind each that follows it, as parts of the answer."""
        if not options.needs_logits:
            assert self._verifier is not None, "nothing else is asked to verify guesses"
            yield from ((token, None) for token in self._verifier.choices(tokens, first, options.sampling))
            return
        last = first == len(tokens) - 1
        rows = self._backend.logits(tokens)[None] if last else self._backend.every(tokens, first)
        for pos, logits in enumerate(rows, first):
            history = [*answer, *(int(token) for token in tokens[first + 1 : pos + 1])]
            token = choose(biased(logits, options, history), options.sampling, pos)
            yield token, _logprob(logits, token, options.logprobs)

    def _followed(
        self,
        speculation: Speculation,
        tree: PrefixTree,
        tokens: Sequence[Token],
        answer: Sequence[int],
        options: Options,
    ) -> list[Chosen]:
        """What is chosen on the way through a tree of guesses."""
        logits = self._backend.branches(tokens, tree.tokens, tree.parents)

        def chosen(node: int, branch: list[int]) -> Chosen:
            row, pos = logits[1 + node], len(tokens) - 1 + len(branch)
            token = choose(biased(row, options, [*answer, *branch]), options.sampling, pos)
            return token, _logprob(row, token, options.logprobs)

        return speculation.followed(tree, chosen, () if options.ignore_eos else self.spec.eos)

    def close(self) -> None:
        """Free the device's memory, once the launch under way has ended; requests after it are refused with AMK005."""
        with self._lock:
            if self._open:
                self._open = False
                self._backend.free()
                if self._speculating is not None:
                    self._speculating.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, prompt: Prompt) -> tuple[Sequence[Token], Sequence[int]]:
        """Tokens of a prompt, and those whose text an answer continues: all of a text, none of anything else."""
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
            return tokens, tokens
        return self.encode(prompt), ()

    def _check_open(self) -> None:
        if not self._open:
            raise AmkError(Diagnostic("AMK005", "the model is closed"))


def _logprob(logits: F32, token: int, count: int | None) -> TokenLogprob | None:
    if count is None:
        return None
    table = log_softmax(logits)
    best = np.argsort(-table, kind="stable")[:count]
    top = tuple((int(row), float(table[row])) for row in best)
    return TokenLogprob(token, float(table[token]), top)
