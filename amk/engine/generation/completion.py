"""What a request asks for and what it gets: options, pieces, completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.sampling import Sampling
from amk.weights.bfloat import F32

Finish = Literal["stop", "length", "cancelled"]
"""An end-of-text token or a stop string came; max_tokens or the context ended; `cancel` was called."""

Mask = Callable[[Sequence[int]], NDArray[np.bool_] | None]
"""From the tokens of the answer so far to booleans [vocab], true where a token may come next; None allows all."""

MOST_LOGPROBS = 20


_KINDS: tuple[tuple[str, Any, str], ...] = (
    *((name, Integral, "a whole number") for name in ("max_tokens", "top_k", "seed", "logprobs")),
    *((name, Real, "a number") for name in ("temperature", "top_p")),
    ("stop", Sequence, "a text, or several"), ("logit_bias", Mapping, "a number for each of some tokens"),
    ("json_schema", (str, Mapping), "an object, or its JSON"), ("regex", str, "a text"), ("grammar", str, "a text"),
    ("choices", Sequence, "a sequence of texts"),
)  # fmt: skip
"""Fields of `Options`, what their values are, and that in words."""
_MAY_BE_NONE = frozenset({"temperature", "logprobs", "json_schema", "regex", "grammar"})


@dataclass(frozen=True)
class Options:
    """How a request decodes. Without any option the most probable token is taken, up to 128 of them.

    max_tokens: of the answer.
    temperature, top_k, top_p, seed: see `amk generate --help`. Equal seeds give equal texts. Without a temperature, a
        filter draws at temperature 1; temperature 0 takes the most probable token whatever the filters are.
    stop: strings that end the answer and are not part of it.
    logprobs: number of alternatives told for each token, 0 to 20. None tells nothing.
    logit_bias: added to the logits of tokens; -100 and less excludes one.
    mask: see `Mask`.
    ignore_eos: go on behind an end-of-text token.
    json_schema, regex, grammar, choices: what the whole answer is, at most one of them. A text that follows this schema
        (an object, or JSON), that this expression matches, of this grammar in Lark's syntax, or one of these. The first
        three need `amk[grammar]`.

    AMK015 for a value outside its range, or of another kind.
    """

    max_tokens: int = 128
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: str | Sequence[str] = ()
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    mask: Mask | None = None
    ignore_eos: bool = False
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    choices: Sequence[str] = ()

    def __post_init__(self) -> None:
        for message in chain(self._other_kinds(), self._other_values()):
            raise AmkError(Diagnostic("AMK015", message))
        _ = self.sampling

    def _other_kinds(self) -> Iterator[str]:
        """What is not of its kind, in words."""
        for name, kind, description in _KINDS:
            value = getattr(self, name)
            absent = value is None and name in _MAY_BE_NONE
            if isinstance(value, bool) or not (isinstance(value, kind) or absent):
                yield f"{name} is {value!r}, it must be {description}"
        if not (self.mask is None or callable(self.mask)):
            yield f"mask is {self.mask!r}, it must be a function"
        if not isinstance(self.ignore_eos, bool):
            yield f"ignore_eos is {self.ignore_eos!r}, it must be True or False"
        if isinstance(self.choices, str):
            yield "choices is one text, it must be a sequence of them"
        if not all(isinstance(choice, str) for choice in self.choices):
            yield f"choices is {self.choices!r}, it must be a sequence of texts"
        if not all(isinstance(stop, str) for stop in self.stops):
            yield f"stop is {self.stop!r}, it must be a text, or several"

    def _other_values(self) -> Iterator[str]:
        """What is outside its range, in words."""
        for token, bias in self.logit_bias.items():
            if not isinstance(token, Integral) or not isinstance(bias, Real) or not bias < math.inf:
                yield f"logit_bias of {token!r} is {bias!r}, it must add a number to a token"
        if self.max_tokens < 1:
            yield f"max_tokens is {self.max_tokens}, it must be at least 1"
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            yield f"logprobs is {self.logprobs}, it must be 0 to {MOST_LOGPROBS}"
        if "" in self.stops:
            yield "an empty stop string would end every answer before its first token"
        if sum(self.restrictions.values()) > 1:
            named = ", ".join(name for name, is_set in self.restrictions.items() if is_set)
            yield f"{named} together say two things about an answer"

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """From the keywords of a function that takes all fields. TypeError for another one, as of any function."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                from difflib import get_close_matches  # importing it takes as long as a token

                near = get_close_matches(name, known, 1)
                advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                raise TypeError(f"unexpected keyword argument {name!r}: {advice}")
        return cls(**options)

    @property
    def restrictions(self) -> dict[str, bool]:
        """What the answer may be restricted by, and whether it is."""
        restrictions = {name: getattr(self, name) is not None for name in ("json_schema", "regex", "grammar")}
        return restrictions | {"choices": len(self.choices) > 0}

    @property
    def sampling(self) -> Sampling:
        filters = self.top_k > 0 or self.top_p < 1
        temperature = self.temperature if self.temperature is not None else 1.0 if filters else 0.0
        return Sampling(temperature, self.top_k, self.top_p, self.seed)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def needs_logits(self) -> bool:
        """Can only the host choose the tokens?"""
        return self.logprobs is not None or bool(self.logit_bias) or self.mask is not None


@dataclass(frozen=True)
class TokenLogprob:
    """A chosen token and the natural logarithm of its probability before temperature, filters, bias and mask.

    top: (token, logprob) of the most probable ones, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of the prompt, how many of them the cache held already, and tokens of the answer.

    steps: passes of the model that chose them. drafted_tokens, accepted_tokens: guesses that they verified, and those
    that were right.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True)
class Piece:
    """What one token added: text that cannot change any more (possibly none), the token, its logprob if asked for."""

    text: str
    token: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True)
class Completion:
    """An answer. tokens include an end-of-text token, text does not show it."""

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True)
class Score:
    """How probable a continuation is: natural logarithms, [len(tokens)], and their sum.

    greedy: is every token the most probable one?
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: bool

    @property
    def logprob(self) -> float:
        return sum(self.logprobs)


@dataclass(frozen=True)
class Perplexity:
    """How well a text was predicted. logprob: sum of the natural logarithms of the probabilities of `tokens` tokens.

    window, stride: tokens that were read together at most, and tokens from the begin of a window to the next one's.
    """

    logprob: float
    tokens: int
    window: int
    stride: int

    @property
    def value(self) -> float:
        """e to the mean negative logarithm: 1 for a text that was certain, the vocabulary's size for a blind guess."""
        return math.exp(-self.logprob / self.tokens)


def biased(logits: F32, options: Options, answer: Sequence[int]) -> F32:
    """The logits with the bias and the mask of a request; AMK015 where no token is left."""
    if not options.logit_bias and options.mask is None:
        return logits
    out = logits.copy()
    for token, bias in options.logit_bias.items():
        out[token] = out[token] + bias if bias > -100 else -float("inf")
    allowed = options.mask(answer) if options.mask is not None else None
    if allowed is not None:
        allowed = booleans(allowed)
        if allowed.shape != out.shape:
            raise AmkError(Diagnostic("AMK015", f"the mask has shape {list(allowed.shape)}, not [{len(out)}]"))
        out[~allowed] = -float("inf")
    if out.max() == -float("inf"):
        raise AmkError(Diagnostic("AMK015", "no token is allowed to come next"))
    return out


def booleans(mask: object) -> NDArray[np.bool_]:
    """What a `Mask` gave; AMK015 for numbers that are no whole ones, which others add to logits."""
    found = np.asarray(mask)
    if found.dtype.kind not in "biu":
        raise AmkError(Diagnostic("AMK015", f"the mask has numbers of type {found.dtype}, it must have booleans"))
    return found.astype(bool)


class StopFilter:
    """Text up to the first stop string; what might begin one is held back until it is decided."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._tail, self.stopped = stops, "", False

    def push(self, text: str) -> str:
        """The part of what came so far that cannot belong to a stop string."""
        if self.stopped:
            return ""
        self._tail += text
        ends = [at for stop in self._stops if (at := self._tail.find(stop)) >= 0]
        if ends:
            self.stopped = True
            keep = min(ends)
        else:
            keep = len(self._tail) - max((self._overlap(stop) for stop in self._stops), default=0)
        out, self._tail = self._tail[:keep], self._tail[keep:]
        return out

    def finish(self) -> str:
        """What was held back, at the end of the text."""
        out = "" if self.stopped else self._tail
        self._tail = ""
        return out

    def _overlap(self, stop: str) -> int:
        """The longest end of the held text that a stop string begins with."""
        return next((n for n in range(min(len(stop) - 1, len(self._tail)), 0, -1) if self._tail.endswith(stop[:n])), 0)
