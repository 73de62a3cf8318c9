"""What one conversation may send, and what it cost: around every HTTP attempt, reserve, send, settle.

Property: settled plus reserved never exceeds the limits of the run, whatever is in flight in other conversations. The
upper bound of an attempt is reserved in the journal before it is sent and settled at what it cost; where that cannot be
known (a timeout, a lost connection) it is settled at the bound. Attempts are repeated here a bounded number of times,
never by the SDK. No more is sent once the conversation has had its turns, tokens, dollars or time.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from amk.agent.journal import budget
from amk.agent.journal.events import LlmReserved, LlmSettled
from amk.agent.journal.store import Journal
from amk.agent.propose.prices import Price
from amk.agent.propose.talk import STOPPED, Bounds, Cassette, Opening, Talk

ATTEMPTS: Final = 3
TIMEOUT: Final = 120.0
"""Seconds of an attempt."""
LONGEST_PAUSE: Final = 30.0
OVERHEAD_TOKENS: Final = 1500
"""What the provider may add to a request (instructions on tools) beyond one token per byte."""
RETRIED: Final = frozenset({408, 409, 429})
"""Statuses worth another attempt, beside 500 and above."""


class OverError(Exception):
    """Nothing more is sent; `kind` says why."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass
class Ledger:
    """Of one conversation. `pause` waits so many seconds, or until `stopped`; `replayed` makes the SDK's message of a
    recorded answer."""

    journal: Journal
    price: Price
    opening: Opening
    bounds: Bounds
    talk: Talk
    stopped: threading.Event
    cassette: Cassette | None = None
    replayed: Callable[[dict[str, Any]], Any] = lambda answer: answer
    attempts: int = ATTEMPTS
    timeout: float = TIMEOUT
    pause: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    dollars: float = 0.0
    tokens: int = 0
    _turn: int = 0
    _begun: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self.clock()

    def handle(self, request: Any, call_next: Callable[[Any], Any]) -> Any:
        """The SDK's middleware: the response to one request of the conversation. OverError if it may not be sent."""
        self._turn += 1
        if self.cassette is not None and self.cassette.replay:
            return self._recorded()
        for attempt in itertools.count(1):
            self._look()
            response, wait = self._attempt(request, call_next, attempt)
            if wait is None:
                return response
            self.pause(wait)

    def _look(self) -> None:
        """OverError once the conversation has had its share."""
        if self.stopped.is_set():
            raise OverError(STOPPED, "the search ended")
        spent = (("seconds", self.clock() - self._begun), ("tokens", self.tokens), ("dollars", self.dollars))
        for kind, used in spent:
            limit = getattr(self.bounds, kind)
            if used >= limit:
                raise OverError(kind, f"{used:.4g} of {limit:.4g} {kind} of a conversation are used")

    def _recorded(self) -> Any:
        assert self.cassette is not None
        answer = self.cassette.answer(self.opening.number, self._turn)
        if answer is None:
            raise OverError("not_recorded", f"the record ends before turn {self._turn}")
        return self.replayed(answer)

    def _attempt(self, request: Any, call_next: Callable[[Any], Any], attempt: int) -> tuple[Any, float | None]:
        """The response, and the seconds to wait before another attempt; None if there is to be none."""
        left = self.bounds.seconds - (self.clock() - self._begun)
        asked = request.copy(timeout=max(0.01, min(self.timeout, left)))
        reserved = self._reserve(asked)
        settled = self._unknown(reserved, "lost")
        try:
            response = call_next(asked)
            settled = self._settlement(reserved, response)
        except Exception as error:
            self.talk.fault(f"attempt {attempt}: {type(error).__name__}")
            if attempt >= self.attempts or self.stopped.is_set():
                raise
            return None, self._wait(None, attempt)
        finally:
            self.dollars += settled.dollars
            self.tokens += settled.input_tokens + settled.output_tokens
            self.journal.append(settled)
        if settled.outcome == "answered":
            self._record(asked, response)
            return response, None
        self.talk.fault(f"attempt {attempt}: {settled.outcome}")
        return response, self._again(response, attempt)

    def _again(self, response: Any, attempt: int) -> float | None:
        status = response.status_code
        last = attempt >= self.attempts or not (status in RETRIED or status >= 500)
        return None if last or b"spend_limit_reached" in response.read() else self._wait(response, attempt)

    def _wait(self, response: Any, attempt: int) -> float | None:
        """At most LONGEST_PAUSE; None if the server asks for longer."""
        asked = None if response is None else response.headers.get("retry-after")
        try:
            wait = float(asked) if asked is not None else min(2.0 ** (attempt - 1), LONGEST_PAUSE)
        except ValueError:
            wait = 2.0 ** (attempt - 1)
        return wait if 0 <= wait <= LONGEST_PAUSE else None

    def _reserve(self, request: Any) -> LlmReserved:
        """OverError, with the reason, if the limits of the run do not allow it."""
        size = len(json.dumps(request.json, ensure_ascii=False).encode("utf-8", "replace")) + OVERHEAD_TOKENS
        with self.journal.locked():
            state = self.journal.state
            known = [*(s.call for s in state.llm_settled), *(r.call for r in state.llm_open.values())]
            reserved = LlmReserved(
                call=1 + max(known, default=0), attempt=1, model=self.opening.model,
                tokens=size + self.opening.max_tokens, dollars=self.price.bound(size, self.opening.max_tokens),
            )  # fmt: skip
            if reason := budget.reserve(self.journal, state.limits, reserved):
                raise OverError("refused_by_budget", reason)
        return reserved

    def _record(self, request: Any, response: Any) -> None:
        if self.cassette is not None:
            digest = hashlib.sha256(json.dumps(request.json, sort_keys=True).encode()).hexdigest()
            self.cassette.record(self.opening.number, self._turn, digest, json.loads(response.read()))

    def _settlement(self, reserved: LlmReserved, response: Any) -> LlmSettled:
        if response.status_code >= 400:
            return self._settled(reserved, f"http {response.status_code}")
        try:
            usage = json.loads(response.read())["usage"]
            counts = [usage["input_tokens"], usage.get("cache_creation_input_tokens") or 0,
                      usage.get("cache_read_input_tokens") or 0, usage["output_tokens"]]  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError):
            return self._unknown(reserved, "unreadable")
        if any(not isinstance(n, int) or n < 0 for n in counts):
            return self._unknown(reserved, "usage that cannot be")
        plain, written, read, out = counts
        dollars = min(self.price.cost(plain, written, read, out), reserved.dollars)
        return self._settled(reserved, "answered", dollars, plain + written, out, read)

    def _settled(
        self, reserved: LlmReserved, outcome: str, dollars: float = 0.0, tokens: int = 0, out: int = 0, read: int = 0
    ) -> LlmSettled:
        return LlmSettled(
            call=reserved.call, attempt=reserved.attempt, dollars=dollars, input_tokens=tokens, output_tokens=out,
            cached_tokens=read, outcome=outcome, live=True,
        )  # fmt: skip

    def _unknown(self, reserved: LlmReserved, outcome: str) -> LlmSettled:
        """Charged in full, because it may have been billed."""
        return self._settled(reserved, outcome, reserved.dollars, reserved.tokens)
