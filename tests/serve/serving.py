"""A server of the tiny model on loopback, in threads of the test's process, whose device can be held."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import amk
from amk.serve.app import Server
from amk.serve.run import HttpServer, listen
from amk.serve.settings import Keys, Limits

NAME = "tiny"
PATIENCE = 20.0
"""Seconds until something that must happen soon has not happened."""


class Held:
    """A backend that computes one request to it for every permit while it is held."""

    def __init__(self, backend: Any) -> None:
        self._backend, self._permits, self.free_running = backend, threading.Semaphore(0), True
        self.asked = threading.Semaphore(0)
        """Released whenever the device is asked for a token."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def extend(self, *arguments: Any) -> Any:
        self._wait()
        return self._backend.extend(*arguments)

    def logits(self, *arguments: Any) -> Any:
        self._wait()
        return self._backend.logits(*arguments)

    def hold(self) -> None:
        self.free_running = False

    def permit(self, tokens: int) -> None:
        self._permits.release(tokens)

    def release(self) -> None:
        self.free_running = True
        self._permits.release(10_000)

    def _wait(self) -> None:
        self.asked.release()
        if not self.free_running:
            assert self._permits.acquire(timeout=PATIENCE)


class Running:
    """A server that runs; `device` is what its model computes on."""

    def __init__(self, model: amk.LanguageModel, server: Server, port: int) -> None:
        self.model, self.server, self.port = model, server, port
        self.device: Held = model._backend  # type: ignore[assignment]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of the answer, whatever they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {"content-type": "application/json"} | (headers or {}))
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        status, _, content = self.ask("POST", path, json.dumps({"model": NAME, **fields}).encode())
        return status, json.loads(content)

    def opened(self, **fields: Any) -> socket.socket:
        """A socket that has sent a request for a chat and reads nothing."""
        body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "HI"}], **fields}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return client

    def metric(self, name: str, **labels: str) -> float:
        return self.server.metrics.registry.get_sample_value(name, labels) or 0.0

    def wait_for(self, name: str, value: float, **labels: str) -> None:
        """Until a metric has a value."""
        _wait(lambda: self.metric(name, **labels) == value, f"{name} is not {value}")

    def wait_until_noticed(self) -> None:
        """Until the server knows that the client of the request that runs is gone."""
        _wait(lambda: any(r.cancelled for r in list(self.server.decoding._running)), "nobody noticed")


def _wait(until: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < end, otherwise
        time.sleep(0.002)


@contextmanager
def serving(
    directory: Path,
    limits: Limits | None = None,
    keys: Keys | None = None,
    defaults: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[Running]:
    model = amk.load(directory, device="cpu", **options)
    model._backend = Held(model._backend)  # type: ignore[assignment]
    limits, keys = limits or Limits(), keys or Keys({})
    listening = listen("127.0.0.1", 0, limits)
    server = Server(model, NAME, limits, keys, defaults)
    process = HttpServer(server)
    thread = threading.Thread(target=process.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    running = Running(model, server, listening.getsockname()[1])
    try:
        yield running
    finally:
        running.device.release()
        server.decoding.drain()
        process.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive() and server.decoding.stop(PATIENCE)
        model.close()
