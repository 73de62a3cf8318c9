"""Several tokens from one pass of the model: the first that it reads is known, the others are guesses that it verifies.

A guess is accepted if it is the token that is chosen there, and the guesses behind a wrong one are dropped, so the text
is that of one token at a time. This holds for drawn tokens, too: with its noise from a counter-based generator a draw
is a function of logits, seed and position. Keys and values of dropped guesses are overwritten by what comes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, runtime_checkable

from amk.engine.backends.backend import Backend
from amk.engine.backends.room import Token
from amk.engine.generation.lookup import Lookup
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.sampling import Sampling

Method = Literal["lookup"]
"""Where guesses come from: the text itself (`lookup`)."""
GUESSES = 7
"""Of a pass unless told otherwise."""


@runtime_checkable
class Verifier(Backend, Protocol):
    """A backend that reads several tokens at once. rows: how many a pass reads whether they are asked for or not; None
    where it takes the longer the more it reads."""

    @property
    def rows(self) -> int | None: ...

    def choices(self, tokens: Sequence[Token], first: int, sampling: Sampling) -> Iterator[int]:
        """The tokens that are chosen behind token `first` and behind each that follows it."""


class Drafter(Protocol):
    """Guesses what comes next."""

    def guess(self, tokens: Sequence[Token], count: int) -> list[int]:
        """At most `count` tokens that may follow `tokens`."""


class Speculation:
    """Tokens of a backend with guesses of a drafter.

    most: guesses of a pass. Where a pass takes the longer the more it reads, one more is made than was accepted the
    last time. drafted: guesses of the last request.
    """

    def __init__(self, backend: Verifier, drafter: Drafter, most: int) -> None:
        self._backend, self._drafter = backend, drafter
        self._most = self._next = most if backend.rows is None else min(most, backend.rows - 1)
        self.drafted = 0

    def extend(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        """As `Backend.extend`; the last token is the model's own, those before it are accepted guesses."""
        room = min(most - 1, self._backend.context - len(tokens), self._next)
        guesses = self._drafter.guess(tokens, room) if room > 0 else []
        found: list[int] = []
        chosen = self._backend.choices([*tokens, *guesses], len(tokens) - 1, sampling)
        for token, guess in zip(chosen, [*guesses, None], strict=True):
            found.append(token)
            if token != guess or token in eos:
                break
        self.drafted = len(guesses)
        if guesses and self._backend.rows is None:
            self._next = min(len(found), self._most)
        return found


def speculation(backend: object, method: Method, most: int) -> Speculation:
    """What is asked for. AMK005 for a method that is not known, or for no guesses; AMK016 where the backend cannot
    verify any."""
    if method != "lookup" or most < 1:
        message = f"speculate={method!r} with {most} draft tokens is not known"
        raise AmkError(Diagnostic("AMK005", message, help="speculate='lookup', with 1 draft token or more"))
    if not isinstance(backend, Verifier):
        message = "a step of the schedule reads one token, so it cannot verify guesses"
        raise AmkError(Diagnostic("AMK016", message, help="plan with --rows"))
    return Speculation(backend, Lookup(shortest=2 if backend.rows is None else 1), most)
