"""The threads that compute: each takes a request from the queue and runs it to its end.

There are as many as the model computes texts at once: one, after which answers come one after the other, or those of a
batch, in which a request joins the others when it comes. What a request shares with one whose cache it takes over
is not read again. A client that reads slowly does not hold a thread: its pieces, at most as many as its answer has
tokens, wait in the request. A request that was cancelled ends behind the token that is being computed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from amk.engine.generation.answer_stream import Stream
from amk.engine.generation.completion import Completion, Options, Piece
from amk.engine.generation.language_model import LanguageModel
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.serve.fair_queue import FairQueue
from amk.serve.metrics import Metrics
from amk.serve.settings import Limits

_LOG = logging.getLogger("amk.serve")
Event = Piece | Completion | AmkError


class Busy(Exception):
    """There is no room in the queue, or (`stopping`) the server is about to end."""

    def __init__(self, stopping: bool) -> None:
        super().__init__("the server is stopping" if stopping else "too many requests are waiting")
        self.stopping = stopping


@dataclass(eq=False)
class Request:
    """One prompt on its way. `events` yields pieces, and last a completion or an error. continues: the answer goes on
    with the text of the prompt."""

    client: str
    prompt: list[int]
    options: Options
    loop: asyncio.AbstractEventLoop
    continues: bool = False
    queued_at: float = field(default_factory=time.monotonic)
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    stopped: bool = False

    def tell(self, event: Event) -> None:
        """From the computing thread; nothing happens where the loop is gone."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class Decoding:
    """Starts its threads at once. failure: the error after which the device cannot be trusted, else None; on_failure is
    then called once, by the thread that met it.
    """

    def __init__(self, model: LanguageModel, limits: Limits, metrics: Metrics) -> None:
        self._model, self._limits, self._metrics = model, limits, metrics
        self._queue: FairQueue[Request] = FairQueue(limits.waiting, limits.waiting_of_one)
        self._running: set[Request] = set()
        self._stopping = False
        self.failure: AmkError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        metrics.watch(waiting=lambda: len(self._queue), running=lambda: len(self._running))
        names = [f"amk-decoding-{number}" for number in range(model.sequences)]
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    @property
    def ready(self) -> bool:
        return self.alive and not self._stopping

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads) and self.failure is None

    def submit(self, request: Request) -> None:
        """Raises Busy."""
        if not self._queue.put(request.client, request):
            raise Busy(self._stopping)

    def cancel(self, request: Request) -> None:
        """Nobody waits for the answer any more: it ends behind the token that is being computed, or never begins."""
        request.cancelled = True
        if self._queue.remove(request.client, request):
            self._metrics.cancelled.inc()

    def drain(self) -> None:
        """Refuse what waits and what comes; requests that run go on."""
        self._stopping = True
        for request in self._queue.close():
            request.tell(_stopping())

    def stop(self, seconds: float) -> bool:
        """End the requests that run, then the threads; false if one does not end in time."""
        self.drain()
        for request in list(self._running):
            request.stopped = True
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (request := self._queue.take()) is not None:
            self._running.add(request)
            try:
                self._answer(request)
            except AmkError as error:
                request.tell(error)
                if error.exit_code not in (Exit.INPUT, Exit.UNKNOWN):
                    self._fail(error)
            except Exception as error:  # noqa: BLE001  the boundary: one request's fault must not end the others'
                _LOG.exception("a request failed")
                request.tell(AmkError(Diagnostic("AMK901", f"{type(error).__name__}: {error}"), Exit.INTERNAL))
            finally:
                self._running.discard(request)

    def _fail(self, error: AmkError) -> None:
        """What waits is refused; what runs beside it is told the same by the device."""
        if self.failure is None:
            self.failure = error
            self.drain()
            self.on_failure()

    def _answer(self, request: Request) -> None:
        begun = last = time.monotonic()
        if request.cancelled:
            return
        self._metrics.queued.observe(begun - request.queued_at)
        if begun - request.queued_at > self._limits.queue_seconds:
            raise _late(f"the request waited for more than {self._limits.queue_seconds:g} s")
        before = request.prompt if request.continues else ()
        with Stream(self._model, request.prompt, request.options, before) as stream:
            for number, piece in enumerate(stream):
                now = time.monotonic()
                (self._metrics.between if number else self._metrics.first).observe(
                    now - (last if number else request.queued_at)
                )
                last = now
                if request.cancelled:
                    self._metrics.cancelled.inc()
                    break
                request.tell(piece)
                if stop := self._why_stopped(request, now - begun):
                    raise stop
            self._metrics.count(stream.completion.usage)
            request.tell(stream.completion)

    def _why_stopped(self, request: Request, seconds: float) -> AmkError | None:
        if request.stopped:
            return _stopping()
        if seconds > self._limits.answer_seconds:
            return _late(f"the answer took more than {self._limits.answer_seconds:g} s")
        return None


def _late(message: str) -> AmkError:
    return AmkError(Diagnostic("AMK019", message), Exit.UNKNOWN)


def _stopping() -> AmkError:
    return AmkError(Diagnostic("AMK019", "the server is stopping"), Exit.UNKNOWN)
