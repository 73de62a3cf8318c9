"""Several texts at once from a schedule whose sequences have positions of their own.

Property: what a text gets does not depend on which others are computed beside it, nor on when they come and go. Each
takes a sequence, reads there what its cache does not hold, and leaves its place behind; tokens are chosen by its own
request, on the device where the schedule can draw so, else here from its logits. Calls may come from several threads:
one of them launches for all that are waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.backend import common
from amk.engine.backends.choice import choose
from amk.engine.backends.room import Token, check_room
from amk.engine.backends.schedule_backend import PromptReader, untold
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.sampling import GREEDY, Sampling, serves
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.weights.bfloat import F32

SLICE = 8
"""Most tokens of a launch: those who come wait for it to end."""
PATIENCE_S = 0.002
"""How long a launch waits for texts that the one before served; about what they need to ask for more."""


class BatchEngine(Protocol):
    """The interpreter or a GPU with a schedule of live sequences."""

    schedule: Schedule

    def request_batch(
        self, prompts: Sequence[Sequence[int]], *, sampling: Sequence[Sampling], start: Sequence[int]
    ) -> None: ...
    def step(self, tokens: int) -> NDArray[np.int32]: ...
    def logits(self) -> F32: ...
    def free(self) -> None: ...


@dataclass(eq=False)
class _Ask:
    """What a thread waits for: `most` tokens behind `text`, or the logits there if `most` is 0."""

    text: list[int]
    most: int
    ends: frozenset[int]
    sampling: Sampling = GREEDY
    cached: int = 0
    found: list[int] = field(default_factory=list)
    logits: F32 | None = None
    error: BaseException | None = None

    @property
    def answered(self) -> bool:
        enough = len(self.found) >= self.most or (self.found and self.found[-1] in self.ends)
        return self.error is not None or self.logits is not None or bool(self.most and enough)


@dataclass(eq=False)
class _Seat:
    """A sequence: the tokens that its cache holds, whose text it computes, and when it last did."""

    number: int
    read: list[int] = field(default_factory=list)
    ask: _Ask | None = None
    used: int = 0

    @property
    def left(self) -> int:
        """Given tokens of its text that are not read yet."""
        return 0 if self.ask is None else len(self.ask.text) + len(self.ask.found) - len(self.read)


class LiveBackend:
    """A `Backend` for as many texts at once as the schedule has sequences; further ones wait for a sequence.

    prompts: reads what is given before the last token of a text, where it does.
    """

    concurrent = True

    def __init__(
        self, engine: BatchEngine, slice: int = SLICE, prompts: PromptReader | None = None, patience: float = PATIENCE_S
    ) -> None:
        schedule = engine.schedule
        if not schedule.live:
            message = "the sequences of the schedule are all at one position: texts cannot come and go"
            raise AmkError(Diagnostic("AMK016", message, help="amk plan --batch N --live"))
        self.engine, self.context, self.prompts = engine, schedule.kv.context, prompts
        self._mode = mode_of(schedule)
        self._slice, self._patience = min(slice, schedule.launch.max_tokens), patience
        self._seats = [_Seat(number) for number in range(schedule.batch)]
        self._asks: list[_Ask] = []
        self._turn = threading.Condition()
        self._launching, self._expected, self._clock = False, 0, 0
        self._told = threading.local()

    @property
    def sequences(self) -> int:
        """Texts that are computed at once."""
        return len(self._seats)

    @property
    def cached(self) -> int:
        """Tokens of this thread's last request that were not read anew."""
        return int(getattr(self._told, "cached", 0))

    def logits(self, tokens: Sequence[Token]) -> F32:
        found = self._answer(tokens, 0).logits
        assert found is not None
        return found

    def every(self, tokens: Sequence[Token], first: int = 0) -> F32:
        return np.array([self.logits(tokens[: end + 1]) for end in range(first, len(tokens))], np.float32)

    def states(self, tokens: Sequence[Token]) -> F32:
        raise untold("hidden states")

    def embeddings(self, tokens: Sequence[int]) -> F32:
        raise untold("embeddings")

    def branches(self, tokens: Sequence[Token], nodes: Sequence[int], parents: Sequence[int]) -> F32:
        paths: list[list[int]] = []
        for token, parent in zip(nodes, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else ()), token])
        return np.array([self.logits([*tokens, *path]) for path in [[], *paths]], np.float32)

    def extend(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        if not serves(self._mode, sampling):
            return [choose(self.logits(tokens), sampling, len(tokens) - 1)]
        return self._answer(tokens, max(1, min(most, self._slice)), eos, sampling).found

    def free(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: not self._launching)
            self.engine.free()

    def _answer(self, tokens: Sequence[Token], most: int, eos: Sequence[int] = (), sampling: Sampling = GREEDY) -> _Ask:
        check_room(tokens, self.engine.schedule.model.vocab, self.context)
        text = [int(token) for token in tokens]
        ask = _Ask(text, min(most, self.context - len(text) + 1), frozenset(eos), sampling)
        with self._turn:
            self._asks.append(ask)
            self._turn.notify_all()
            while not ask.answered:
                if self._launching:
                    self._turn.wait()
                else:
                    self._lead()
        self._told.cached = ask.cached
        if ask.error is not None:
            raise ask.error
        return ask

    def _lead(self) -> None:
        """One launch for all who ask; the lock is held but for the launch."""
        self._launching = True
        try:
            self._turn.wait_for(lambda: len(self._asks) >= self._expected, self._patience)
            self._seat()
            self._turn.release()
            try:
                self._launch()
            finally:
                self._turn.acquire()
        except BaseException as error:
            for ask in self._asks:
                ask.error = error
            for seat in self._seats:
                seat.read = []
            if not isinstance(error, Exception):
                raise
        finally:
            self._expected = sum(seat.ask is not None for seat in self._seats)
            self._leave()
            self._launching = False
            self._turn.notify_all()

    def _leave(self) -> None:
        for seat in self._seats:
            if seat.ask is not None and seat.ask.answered:
                seat.ask = None
        for ask in [ask for ask in self._asks if ask.answered]:
            self._asks.remove(ask)

    def _seat(self) -> None:
        """Texts that wait take free sequences, in their order: each the one whose cache holds most of it, or else the
        one that was not used for longest."""
        seated = {id(seat.ask) for seat in self._seats}
        for ask in (ask for ask in self._asks if id(ask) not in seated):
            free = [seat for seat in self._seats if seat.ask is None]
            if not free:
                return
            seat = max(free, key=lambda seat: (common(seat.read, ask.text), -seat.used))
            ask.cached = min(common(seat.read, ask.text), len(ask.text) - 1)
            seat.read, seat.ask = seat.read[: ask.cached], ask

    def _launch(self) -> None:
        busy = [seat for seat in self._seats if seat.ask is not None]
        self._clock += 1
        for seat in busy:
            seat.used = self._clock
            self._read_at_once(seat)
        count = self._count(busy)
        texts: list[list[int]] = [[] for _ in self._seats]
        starts, sampling = [0 for _ in self._seats], [GREEDY for _ in self._seats]
        for seat in busy:
            assert seat.ask is not None
            texts[seat.number], starts[seat.number] = [*seat.ask.text, *seat.ask.found], len(seat.read)
            sampling[seat.number] = seat.ask.sampling
        for seat in self._seats:
            if seat.ask is None:  # it runs too, behind what its cache holds
                seat.read = seat.read[: self.context - count]
                texts[seat.number], starts[seat.number] = [*seat.read, 0], len(seat.read)
        self.engine.request_batch(texts, sampling=sampling, start=starts)
        chosen = self.engine.step(count).reshape(count, -1)
        logits = self.engine.logits() if any(seat.ask and not seat.ask.most for seat in busy) else None
        for seat in busy:
            self._take(seat, count, [int(token) for token in chosen[:, seat.number]], logits)

    def _read_at_once(self, seat: _Seat) -> None:
        assert seat.ask is not None
        begin, end = len(seat.read), len(seat.ask.text) - 1
        given = seat.ask.text[begin:end]
        if self.prompts is not None and given and self.prompts.read(given, begin, seat.number):
            seat.read = seat.ask.text[:end]

    def _count(self, busy: Sequence[_Seat]) -> int:
        """Tokens of the launch: it ends where the first text has what was asked for."""
        wanted = [seat.left - 1 + max(1, seat.ask.most - len(seat.ask.found)) for seat in busy if seat.ask]
        return max(1, min(self._slice, *wanted))

    def _take(self, seat: _Seat, count: int, chosen: list[int], logits: F32 | None) -> None:
        """What the launch means for the text: given tokens were read, and behind the last of them tokens are chosen."""
        ask, left = seat.ask, seat.left
        assert ask is not None
        text = [*ask.text, *ask.found]
        new = chosen[left - 1 :]
        seat.read = [*text, *new][: len(seat.read) + count]
        if not new:
            return
        if not ask.most:
            assert logits is not None
            ask.logits = np.array(logits[seat.number], np.float32)
            return
        for token in new:
            ask.found.append(token)
            if token in ask.ends:
                break
