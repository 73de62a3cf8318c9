"""The way to a language model and back; the only module that imports `anthropic`, and only when a model is called.

Every attempt passes the middleware: its upper bound is reserved in the journal before it is sent and settled at what it
cost; an attempt whose cost cannot be known (a timeout, a lost connection) is settled at the bound. The SDK never
retries, this module does, a bounded number of times. A missing answer is no error of the run: it is a `Failure`, and
the search goes on without the model.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amk.agent.journal import budget
from amk.agent.journal.events import LlmReserved, LlmSettled
from amk.agent.journal.store import Journal
from amk.agent.propose.prices import Price

ATTEMPTS = 3
TIMEOUT = 120.0
LONGEST_PAUSE = 30.0
OVERHEAD_TOKENS = 1500
"""What the provider may add to a request (schema instructions) beyond one token per byte."""

NO_RETRY = ("BadRequestError", "AuthenticationError", "PermissionDeniedError", "NotFoundError",
            "EnforcedSpendLimitReachedError", "ContractSpendLimitReachedError",
            "LinkedOrganizationSpendLimitReachedError")  # fmt: skip


@dataclass(frozen=True)
class Request:
    """`system` is the same for the whole run, so that it is read from the provider's cache."""

    model: str
    system: str
    prompt: str
    schema: dict[str, Any]
    max_tokens: int = 4096

    def body(self) -> dict[str, Any]:
        """Arguments of `messages.create`; there is no temperature, reproducibility is record and replay."""
        return {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "system": [{"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": self.prompt}],
            "output_config": {"format": {"type": "json_schema", "schema": self.schema}},
        }

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.body(), sort_keys=True).encode()).hexdigest()

    @property
    def input_bound(self) -> int:
        """Tokens: a token is at least one byte."""
        return len(json.dumps(self.body(), ensure_ascii=False).encode()) + OVERHEAD_TOKENS


@dataclass(frozen=True)
class Reply:
    text: str
    live: bool


@dataclass(frozen=True)
class Failure:
    """kind: refused_by_budget, no_key, unavailable, refusal, truncated, empty, malformed, not_recorded, or the name of
    the SDK's error."""

    kind: str
    detail: str = ""


@dataclass
class Cassette:
    """Recorded answers by request, one JSON object a line."""

    path: Path
    replay: bool

    def find(self, digest: str) -> str | None:
        if not self.path.exists():
            return None
        for line in self.path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["request"] == digest:
                return str(record["text"])
        return None

    def record(self, digest: str, text: str) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"request": digest, "text": text}) + "\n")


@dataclass
class Transport:
    """api_key and base_url are for tests; without them the SDK finds its own credentials. `pause` sleeps."""

    journal: Journal
    price: Price
    api_key: str | None = None
    base_url: str | None = None
    timeout: float = TIMEOUT
    attempts: int = ATTEMPTS
    cassette: Cassette | None = None
    pause: Callable[[float], None] = time.sleep
    live_calls: int = 0
    _client: Any = None
    _current: tuple[int, Request] | None = None
    _attempt: Any = field(default_factory=lambda: itertools.count(1))

    def ask(self, request: Request) -> Reply | Failure:
        """One answer, from the record or from the model."""
        if self.cassette is not None and (text := self.cassette.find(request.digest)) is not None:
            return Reply(text, live=False)
        if self.cassette is not None and self.cassette.replay:
            return Failure("not_recorded", "the record holds no answer to this request")
        if self._client is None and (failure := self._connect()):
            return failure
        call = 1 + max((s.call for s in self.journal.state.llm_settled), default=0)
        self._current, self._attempt = (call, request), itertools.count(1)
        reply = self._try(request)
        if isinstance(reply, Reply) and self.cassette is not None:
            self.cassette.record(request.digest, reply.text)
        return reply

    def _connect(self) -> Failure | None:
        try:
            import anthropic
        except ImportError:
            return Failure("unavailable", "the anthropic package is not installed: pip install amk[llm]")
        if self.api_key is None and not os.environ.get("ANTHROPIC_API_KEY"):
            return Failure("no_key", "ANTHROPIC_API_KEY is not set")
        handler = self._handle

        class Ledger(anthropic.Middleware):  # type: ignore[misc]
            def handle(self, request: Any, call_next: Any) -> Any:
                return handler(request, call_next)

        self._client = anthropic.Anthropic(
            api_key=self.api_key, base_url=self.base_url, max_retries=0, timeout=self.timeout, middleware=[Ledger()]
        )
        return None

    def _try(self, request: Request) -> Reply | Failure:
        import anthropic

        arguments, failure = request.body(), Failure("unavailable")
        arguments["output_config"]["format"]["schema"] = anthropic.transform_schema(request.schema)
        for attempt in range(self.attempts):
            try:
                message = self._client.messages.create(**arguments)
            except _BudgetError as error:
                return Failure("refused_by_budget", str(error))
            except anthropic.AnthropicError as error:
                failure = Failure(type(error).__name__, str(error)[:300])
                wait = retry_after(error, attempt)
                if failure.kind in NO_RETRY or wait is None or attempt + 1 == self.attempts:
                    return failure
                self.pause(wait)
                continue
            except (ValueError, TypeError) as error:  # an answer that is no JSON
                return Failure("malformed", str(error)[:300])
            return read(message)
        return failure

    def _handle(self, request: Any, call_next: Any) -> Any:
        """Around every HTTP attempt: reserve, send, settle."""
        assert self._current is not None
        call, asked = self._current
        attempt = next(self._attempt)
        tokens = asked.input_bound + asked.max_tokens
        reserved = LlmReserved(
            call=call, attempt=attempt, model=asked.model, tokens=tokens,
            dollars=self.price.bound(asked.input_bound, asked.max_tokens),
        )  # fmt: skip
        if reason := budget.reserve(self.journal, self.journal.state.limits, reserved):
            raise _BudgetError(reason)
        self.live_calls += 1
        settled = self._unknown(reserved, "lost")
        try:
            response = call_next(request)
            settled = self._settlement(reserved, response)
        finally:
            self.journal.append(settled)
        return response

    def _settlement(self, reserved: LlmReserved, response: Any) -> LlmSettled:
        if response.status_code >= 400:
            return LlmSettled(
                call=reserved.call, attempt=reserved.attempt, dollars=0.0, input_tokens=0, output_tokens=0,
                cached_tokens=0, outcome=f"http {response.status_code}", live=True,
            )  # fmt: skip
        try:
            usage = response.parse().usage
            counts = [usage.input_tokens, usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0,
                      usage.output_tokens]  # fmt: skip
        except (ValueError, TypeError, AttributeError):
            return self._unknown(reserved, "unreadable")
        if any(not isinstance(n, int) or n < 0 for n in counts):
            return self._unknown(reserved, "usage that cannot be")
        plain, written, read_tokens, out = counts
        dollars = min(self.price.cost(plain, written, read_tokens, out), reserved.dollars)
        return LlmSettled(
            call=reserved.call, attempt=reserved.attempt, dollars=dollars, input_tokens=plain + written,
            output_tokens=out, cached_tokens=read_tokens, outcome="answered", live=True,
        )  # fmt: skip

    def _unknown(self, reserved: LlmReserved, outcome: str) -> LlmSettled:
        """Charged in full, because it may have been billed."""
        return LlmSettled(
            call=reserved.call, attempt=reserved.attempt, dollars=reserved.dollars, input_tokens=reserved.tokens,
            output_tokens=0, cached_tokens=0, outcome=outcome, live=True,
        )  # fmt: skip


class _BudgetError(Exception):
    """The budget does not allow the attempt."""


def read(message: Any) -> Reply | Failure:
    """The text of a complete answer."""
    if message.stop_reason == "refusal":
        return Failure("refusal", "the model declined")
    if message.stop_reason == "max_tokens":
        return Failure("truncated", "the answer was cut at its token limit")
    text = "".join(str(block.text) for block in message.content or () if block.type == "text")
    return Reply(text, live=True) if text.strip() else Failure("empty", "the answer has no text")


def retry_after(error: Any, attempt: int) -> float | None:
    """Seconds to wait before the next attempt, at most LONGEST_PAUSE; None if the server asks for longer."""
    response = getattr(error, "response", None)
    asked = response.headers.get("retry-after") if response is not None else None
    try:
        wait = float(asked) if asked is not None else min(2.0**attempt, LONGEST_PAUSE)
    except ValueError:
        wait = 2.0**attempt
    return wait if 0 <= wait <= LONGEST_PAUSE else None
