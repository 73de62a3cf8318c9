"""What a server counts, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from amk.engine.generation.completion import Usage

_SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_LONG = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


class Metrics:
    """One server's; times in seconds."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.requests = Counter("amk_requests", "Requests by path and HTTP status", ["path", "status"], registry=own)
        self.cancelled = Counter("amk_cancelled", "Answers whose client went away", registry=own)
        self.tokens = Counter("amk_tokens", "Tokens by what they were", ["kind"], registry=own)
        self.queued = Histogram("amk_queue_seconds", "From a request to its turn", buckets=_LONG, registry=own)
        self.first = Histogram(
            "amk_first_token_seconds", "From a request to its first token", buckets=_LONG, registry=own
        )
        self.between = Histogram("amk_between_tokens_seconds", "Between tokens", buckets=_SHORT, registry=own)
        self._waiting = Gauge("amk_waiting", "Requests in the queue", registry=own)
        self._running = Gauge("amk_running", "Requests that are being computed", registry=own)

    def watch(self, waiting: Callable[[], float], running: Callable[[], float]) -> None:
        """Where the gauges are read."""
        self._waiting.set_function(waiting)
        self._running.set_function(running)

    def count(self, usage: Usage) -> None:
        self.tokens.labels("prompt").inc(usage.prompt_tokens)
        self.tokens.labels("cached").inc(usage.cached_tokens)
        self.tokens.labels("completion").inc(usage.completion_tokens)
        self.tokens.labels("drafted").inc(usage.drafted_tokens)
        self.tokens.labels("accepted").inc(usage.accepted_tokens)

    def text(self) -> bytes:
        return generate_latest(self.registry)
