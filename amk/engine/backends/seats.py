"""Texts that are computed together: each takes a seat, one thread computes for all that are waiting.

Property: calls may come from several threads, for more texts than there are seats. A text gets the seat whose cache
holds most of it, or else the one that was not used for longest, and leaves its cache behind; further texts wait.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from amk.engine.backends.backend import common
from amk.engine.backends.room import Token

PATIENCE_S = 0.002
"""How long a pass waits for texts that the one before served; about what they need to ask for more."""


@dataclass(eq=False)
class Ask(ABC):
    """What a thread waits for. first: the token of the text behind which something is asked for, which is read anew."""

    text: list[Token]
    first: int
    cached: int = field(default=0, init=False)
    error: BaseException | None = field(default=None, init=False)

    @property
    @abstractmethod
    def answered(self) -> bool: ...


A = TypeVar("A", bound=Ask)


@dataclass(eq=False)
class Seat(Generic[A]):
    """A place in the device's cache: the tokens that it holds, whose text it computes, and when it last did."""

    number: int
    read: Sequence[Token] = ()
    ask: A | None = None
    used: int = 0


class Seats(ABC, Generic[A]):
    """As many texts at once as there are seats. patience: how long a pass waits for texts that are expected."""

    concurrent = True
    keeps = False
    """Are the caches what `read` says they are after a pass that failed?"""

    def __init__(self, count: int, patience: float = PATIENCE_S) -> None:
        self._patience = patience
        self._seats = [Seat[A](number) for number in range(count)]
        self._asks: list[A] = []
        self._turn = threading.Condition()
        self._computing, self._expected, self._clock = False, 0, 0
        self._reply = threading.local()

    @property
    def sequences(self) -> int:
        """Texts that are computed at once."""
        return len(self._seats)

    @property
    def cached(self) -> int:
        """Tokens of this thread's last request that were not read anew."""
        return int(getattr(self._reply, "cached", 0))

    @abstractmethod
    def _compute(self, busy: Sequence[Seat[A]]) -> None:
        """One pass for the texts on these seats; `read` of each says what its cache then holds."""

    def _answer(self, ask: A) -> A:
        """The ask, answered. Raises what computing it raised."""
        with self._turn:
            self._asks.append(ask)
            self._turn.notify_all()
            try:
                while not (ask.answered or ask.error):
                    if self._computing:
                        self._turn.wait()
                    else:
                        self._lead()
            except BaseException as error:
                ask.error = error
                self._leave()
                raise
        self._reply.cached = ask.cached
        if ask.error is not None:
            raise ask.error
        return ask

    def _lend(self, text: Sequence[Token], write: Callable[[int], bool]) -> bool:
        """Somebody writes keys and values of a text to the cache of a free seat, given by its number. False where none
        is free, or nothing was written."""
        with self._turn:
            self._idle()
            free = [seat for seat in self._seats if seat.ask is None]
            if not free:
                return False
            seat = min(free, key=lambda seat: seat.used)
            seat.read = ()
            if not write(seat.number):
                return False
            self._clock += 1
            seat.read, seat.used = list(text), self._clock
            return True

    def _idle(self) -> None:
        """Wait until nothing is being computed; the lock is held."""
        self._turn.wait_for(lambda: not self._computing)

    def _lead(self) -> None:
        """One pass for all who have a seat; the lock is held but for the pass. Who waits for a seat shares no fault."""
        self._computing, busy = True, list[Seat[A]]()
        try:
            self._turn.wait_for(lambda: len(self._asks) >= self._expected, self._patience)
            self._seat()
            busy = [seat for seat in self._seats if seat.ask is not None]
            self._clock += 1
            self._turn.release()
            try:
                self._compute(busy)
            finally:
                self._turn.acquire()
            for seat in busy:
                seat.used = self._clock
        except BaseException as error:
            for ask in [seat.ask for seat in busy if seat.ask is not None] or self._asks:
                ask.error = error
            for seat in () if self.keeps else self._seats:
                seat.read = ()
            if not isinstance(error, Exception):
                raise
        finally:
            self._expected = min(len(self._asks), len(self._seats))
            self._leave()
            self._computing = False
            self._turn.notify_all()

    def _leave(self) -> None:
        self._asks = [ask for ask in self._asks if not (ask.answered or ask.error)]
        for seat in self._seats:
            if seat.ask not in self._asks:
                seat.ask = None

    def _seat(self) -> None:
        """Texts that wait take free seats, in their order."""
        seated = {id(seat.ask) for seat in self._seats}
        for ask in (ask for ask in self._asks if id(ask) not in seated):
            free = [seat for seat in self._seats if seat.ask is None]
            if not free:
                return
            seat = max(free, key=lambda seat: (common(seat.read, ask.text), -seat.used))
            ask.cached = min(common(seat.read, ask.text), ask.first)
            seat.read, seat.ask = seat.read[: ask.cached], ask
