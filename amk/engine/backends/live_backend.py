"""Several texts at once from a schedule whose sequences have positions of their own.

Property: what a text gets does not depend on which others are computed beside it, nor on when they come and go. Each
takes a sequence, reads there what its cache does not hold, and leaves its place behind; tokens are chosen by its own
request, on the device where the schedule can draw so, else here from its logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.backend import Writer
from amk.engine.backends.choice import choose
from amk.engine.backends.room import Token, check_room, token_numbers
from amk.engine.backends.schedule_backend import OwnMemory, PromptReader, ScheduleTexts
from amk.engine.backends.seats import PATIENCE_S, Ask, Seat, Seats
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.sampling import GREEDY, Sampling, serves
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.weights.bfloat import F32

SLICE = 8
"""Most tokens of a launch: those who come wait for it to end."""


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
class _Ask(Ask):
    """`most` tokens behind a text, or the logits there if `most` is 0."""

    most: int
    ends: frozenset[int]
    sampling: Sampling = GREEDY
    answer: list[int] = field(default_factory=list)
    logits: F32 | None = None

    @property
    def answered(self) -> bool:
        enough = len(self.answer) >= self.most or (self.answer and self.answer[-1] in self.ends)
        return self.logits is not None or bool(self.most and enough)

    @property
    def tokens(self) -> list[int]:
        """Of the text and behind it."""
        return [*token_numbers(self.text), *self.answer]


def _unread(seat: Seat[_Ask], ask: _Ask) -> int:
    """Given tokens of its text that are not read yet."""
    return len(ask.text) + len(ask.answer) - len(seat.read)


class LiveBackend(ScheduleTexts, Seats[_Ask]):
    """A `Backend` for as many texts at once as the schedule has sequences; further ones wait for a sequence.

    prompts: reads what is given before the last token of a text, where it does.
    """

    def __init__(
        self, engine: BatchEngine, slice: int = SLICE, prompts: PromptReader | None = None, patience: float = PATIENCE_S
    ) -> None:
        schedule = engine.schedule
        if not schedule.live:
            message = "the sequences of the schedule are all at one position: texts cannot come and go"
            raise AmkError(Diagnostic("AMK016", message, help="amk plan --batch N --live"))
        super().__init__(schedule.batch, patience)
        self.engine, self.context, self.prompts = engine, schedule.kv.context, prompts
        self._mode, self._slice = mode_of(schedule), min(slice, schedule.launch.max_tokens)

    def logits(self, tokens: Sequence[Token]) -> F32:
        found = self._answer_text(tokens, 0).logits
        assert found is not None
        return found

    def extend(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        if not serves(self._mode, sampling):
            return [choose(self.logits(tokens), sampling, len(tokens) - 1)]
        return self._answer_text(tokens, max(1, min(most, self._slice)), eos, sampling).answer

    def lend(self, tokens: Sequence[Token], write: Writer) -> bool:
        return self._lend(tokens, lambda number: write(self.engine, number))

    def free(self) -> None:
        with self._turn:
            self._idle()
            if isinstance(self.prompts, OwnMemory):
                self.prompts.free()
            self.engine.free()

    def _answer_text(
        self, tokens: Sequence[Token], most: int, eos: Sequence[int] = (), sampling: Sampling = GREEDY
    ) -> _Ask:
        check_room(tokens, self.engine.schedule.model.vocab, self.context)
        room = self.context - len(tokens) + 1
        return self._answer(_Ask(list(tokens), len(tokens) - 1, min(most, room), frozenset(eos), sampling))

    def _compute(self, busy: Sequence[Seat[_Ask]]) -> None:
        asks = [(seat, seat.ask) for seat in busy if seat.ask is not None]
        for seat, ask in asks:
            self._read_at_once(seat, ask)
        count = self._count(asks)
        texts: list[list[int]] = [[] for _ in self._seats]
        starts, sampling = [0 for _ in self._seats], [GREEDY for _ in self._seats]
        for seat, ask in asks:
            texts[seat.number], starts[seat.number] = ask.tokens, len(seat.read)
            sampling[seat.number] = ask.sampling
        for seat in self._seats:
            if seat.ask is None:  # it runs too, behind what its cache holds
                seat.read = seat.read[: self.context - count]
                texts[seat.number], starts[seat.number] = [*map(int, seat.read), 0], len(seat.read)
        self.engine.request_batch(texts, sampling=sampling, start=starts)
        chosen = self.engine.step(count).reshape(count, -1)
        logits = self.engine.logits() if any(not ask.most for _, ask in asks) else None
        for seat, ask in asks:
            self._take(seat, ask, count, [int(token) for token in chosen[:, seat.number]], logits)

    def _read_at_once(self, seat: Seat[_Ask], ask: _Ask) -> None:
        begin, end = len(seat.read), len(ask.text) - 1
        numbers = ask.tokens[begin:end]
        if self.prompts is not None and numbers and self.prompts.read(numbers, begin, seat.number):
            seat.read = ask.text[:end]

    def _count(self, asks: Sequence[tuple[Seat[_Ask], _Ask]]) -> int:
        """Tokens of the launch: it ends where the first text has what was asked for."""
        wanted = [_unread(seat, ask) - 1 + max(1, ask.most - len(ask.answer)) for seat, ask in asks]
        return max(1, min(self._slice, *wanted))

    def _take(self, seat: Seat[_Ask], ask: _Ask, count: int, chosen: list[int], logits: F32 | None) -> None:
        """What the launch means for the text: given tokens were read, and behind the last of them tokens are chosen."""
        new = chosen[_unread(seat, ask) - 1 :]
        seat.read = [*ask.tokens, *new][: len(seat.read) + count]
        if not new:
            return
        if not ask.most:
            assert logits is not None
            ask.logits = np.array(logits[seat.number], np.float32)
            return
        for token in new:
            ask.answer.append(token)
            if token in ask.ends:
                break
