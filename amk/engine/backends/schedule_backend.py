"""Texts from a schedule, on the interpreter or on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.backend import Writer, common
from amk.engine.backends.room import Token, check_room, token_numbers
from amk.engine.backends.run import Launches, Run
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.ops.select import REQUEST
from amk.schedule_ir.sampling import GREEDY, Sampling, require
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.weights.bfloat import F32


class ScheduleEngine(Protocol):
    """The interpreter or a GPU with a schedule of one sequence; `step` and `request` are those of `session.Engine`."""

    schedule: Schedule

    def request(
        self,
        prompt: list[int],
        eos: tuple[int, ...] = ...,
        sampling: Sampling = ...,
        start: int = ...,
        prompt_length: int | None = ...,
        parents: Sequence[int] = ...,
    ) -> None: ...
    def step(self, tokens: int) -> NDArray[np.int32]: ...
    def logits(self, row: int | None = ...) -> F32: ...
    def free(self) -> None: ...


@runtime_checkable
class AheadEngine(Protocol):
    """An engine with several launches under way."""

    def ahead(self, count: int) -> Launches: ...


class PromptReader(Protocol):
    """What reads many given tokens at once into an engine's cache."""

    def read(self, tokens: Sequence[int], start: int, sequence: int = 0) -> bool:
        """Append tokens at position `start`; False, with nothing promised about the cache, where the kernel has to."""


class LogitsBehind(Protocol):
    """What the model says behind a token."""

    @property
    def largest(self) -> int: ...
    def logits(self) -> F32: ...


@runtime_checkable
class WholeReader(Protocol):
    """A reader that can tell what follows the last token."""

    def read_all(self, tokens: Sequence[int], start: int) -> LogitsBehind | None:
        """As `read`, of all tokens of a text; None where that and the kernel have to."""


@runtime_checkable
class OwnMemory(Protocol):
    """A reader that holds memory until it is told to give it back."""

    def free(self) -> None: ...


def _untold(what: str) -> AmkError:
    message = f"a schedule does not give {what}"
    return AmkError(Diagnostic("AMK015", message, help="load the model with states=True, or with device='cpu'"))


class ScheduleTexts(ABC):
    """What a schedule tells of texts: the logits behind one token at a time."""

    @abstractmethod
    def logits(self, tokens: Sequence[Token]) -> F32: ...

    def every(self, tokens: Sequence[Token], first: int = 0) -> F32:
        return np.array([self.logits(tokens[: end + 1]) for end in range(first, len(tokens))], np.float32)

    def states(self, tokens: Sequence[Token]) -> F32:
        raise _untold("hidden states")

    def embeddings(self, tokens: Sequence[int]) -> F32:
        raise _untold("embeddings")

    def branches(self, tokens: Sequence[Token], nodes: Sequence[int], parents: Sequence[int]) -> F32:
        paths: list[list[int]] = []
        for token, parent in zip(nodes, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else ()), token])
        order = sorted(range(len(paths)), key=lambda node: paths[node])  # what two paths share stays in the cache
        after = self.logits(tokens)
        rows = np.empty((1 + len(paths), len(after)), np.float32)
        rows[0] = after
        for node in order:
            rows[1 + node] = self.logits([*tokens, *paths[node]])
        return rows


class ScheduleBackend(ScheduleTexts):
    """A schedule; tokens are chosen where it runs unless their logits are asked for.

    slice: tokens of a launch, unless the engine has several under way. prompts: reads what is given before the last
    token, or all of it, where it does.
    """

    def __init__(self, engine: ScheduleEngine, slice: int = 1, prompts: PromptReader | None = None) -> None:
        self.engine, self.context, self._slice = engine, engine.schedule.kv.context, slice
        self.prompts = prompts
        self._read: list[Token] = []
        self._run: Run | None = None
        self.cached = 0

    def logits(self, tokens: Sequence[Token]) -> F32:
        numbers = self._keep(tokens)
        if (behind := self._behind(numbers)) is not None:
            self._read = list(tokens)
            return behind.logits()
        self._begin(numbers)
        self._step(tokens, len(tokens))
        return self.engine.logits()

    def extend(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> list[int]:
        run = self._run
        if run is None or not run.goes_on(tokens, sampling, eos):
            numbers, count = self._keep(tokens, sampling), min(most, self.context - len(tokens) + 1)
            launches: Launches
            # The host takes longer to draw a token than a step of one row does.
            if not sampling.temperature and (behind := self._behind(numbers)) is not None:
                launches = self._after(behind.largest, numbers, count, tuple(eos))
            else:
                self._begin(numbers, tuple(eos), sampling)
                self._step(tokens, len(tokens) - 1)
                launches = self._launches(count)
            self._run = run = Run(launches, tokens, sampling, eos)
        found = run.next(most)
        self._read = [*tokens, *found[:-1]]
        if found[-1] in eos:
            self._stop()
        return found

    def _after(self, first: int, numbers: list[int], count: int, eos: tuple[int, ...]) -> Generator[list[int]]:
        """`count` tokens: the first, which is known, and what the schedule chooses behind it."""
        yield [first]
        if count > 1:
            self.engine.request([*numbers, first], eos[: len(REQUEST) - 1], GREEDY, len(numbers))
            yield from self._launches(count - 1)

    def _launches(self, count: int) -> Launches:
        """`count` tokens."""
        if isinstance(self.engine, AheadEngine):
            return self.engine.ahead(count)
        return self._slices(count)

    def _slices(self, count: int) -> Generator[list[int]]:
        while count:
            most = min(count, self._slice, self.engine.schedule.launch.max_tokens)
            found: list[int] = self.engine.step(most).tolist()
            count -= len(found)
            yield found

    def _stop(self) -> None:
        """Nothing runs any more."""
        if self._run is not None:
            run, self._run = self._run, None
            run.close()

    def lend(self, tokens: Sequence[Token], write: Writer) -> bool:
        self.forget()
        if write(self.engine, 0):
            self._read = list(tokens)
        return bool(self._read)

    def forget(self) -> None:
        """Read the next text from its first token on, whatever the cache holds."""
        self._stop()
        self._read = []

    def free(self) -> None:
        self._stop()
        if isinstance(self.prompts, OwnMemory):
            self.prompts.free()
        self.engine.free()

    def _keep(self, tokens: Sequence[Token], sampling: Sampling = GREEDY) -> list[int]:
        """The text; kept is what the cache holds of it before its last token. AMK015 for a choice that the schedule
        cannot make."""
        self._stop()
        numbers = self._keep_before(tokens, len(tokens) - 1)
        require(mode_of(self.engine.schedule), sampling)
        return numbers

    def _keep_before(self, tokens: Sequence[Token], first: int) -> list[int]:
        """The text; kept is what the cache holds of it before token `first`. What was read was looked at then."""
        known = common(self._read, tokens)
        check_room(tokens, self.engine.schedule.model.vocab, self.context, before=known)
        same = cast("list[int]", self._read[:known])
        self.cached = min(known, first)
        self._read = self._read[: self.cached]
        return [*same, *token_numbers(tokens[known:])]

    def _behind(self, numbers: list[int]) -> LogitsBehind | None:
        """All that the cache does not hold is read, by a reader that tells what follows."""
        if not isinstance(self.prompts, WholeReader):
            return None
        return self.prompts.read_all(numbers[self.cached :], self.cached)

    def _begin(self, numbers: list[int], eos: tuple[int, ...] = (), sampling: Sampling = GREEDY) -> None:
        """Start at the first token that the cache does not hold."""
        last = len(numbers) - 1
        if self.prompts is not None and self.prompts.read(numbers[self.cached : last], self.cached):
            self._read = list(numbers[:last])
        self.engine.request(numbers, eos[: len(REQUEST) - 1], sampling, len(self._read))

    def _step(self, tokens: Sequence[Token], end: int) -> None:
        """Run the given tokens up to `end`, in as few launches as the output buffer allows."""
        while len(self._read) < end:
            count = min(end - len(self._read), self.engine.schedule.launch.max_tokens)
            self.engine.step(count)
            self._read = list(tokens[: len(self._read) + count])
