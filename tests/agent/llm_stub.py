"""A language model's HTTP service, as far as the transport can see it: every request gets the next scripted answer."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], Any, float]
"""Status, headers, body, seconds to wait."""
_NUMBERS = itertools.count(1)


@dataclass
class Script:
    """Answers in order, the last one repeated, or what answers a request."""

    answers: list[Answer] | Callable[[dict[str, Any]], Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def answer(self, request: dict[str, Any], number: int) -> Answer:
        if not isinstance(self.answers, list):
            return self.answers(request)
        return self.answers[min(number, len(self.answers)) - 1]


def message(text: str, stop: str = "end_turn", usage: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "stop_reason": stop,
        "stop_sequence": None, "content": [{"type": "text", "text": text}] if text else [],
        "usage": usage or {"input_tokens": 1000, "output_tokens": 100},
    }  # fmt: skip


def error(kind: str, code: str | None = None) -> dict[str, Any]:
    details = {"error_code": code} if code else None
    return {"type": "error", "error": {"type": kind, "message": kind, "details": details}}


def ok(text: str, **more: Any) -> Answer:
    return 200, {}, message(text, **more), 0.0


def uses(*calls: tuple[str, dict[str, Any]], stop: str = "tool_use", **more: Any) -> Answer:
    """An answer that calls tools, side by side."""
    said = message("I look.", stop, **more)
    blocks = [
        {"type": "tool_use", "id": f"toolu_{next(_NUMBERS)}", "name": name, "input": arguments}
        for name, arguments in calls
    ]
    return 200, {}, said | {"content": [*said["content"], *blocks]}, 0.0


def turn(request: dict[str, Any]) -> int:
    """Which turn of its conversation a request asks for, from 1."""
    return (len(request["messages"]) + 1) // 2


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The base URL of a server that plays `script`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            request = json.loads(self.rfile.read(length))
            script.requests.append(request)
            script.headers.append(dict(self.headers))
            status, headers, body, wait = script.answer(request, len(script.requests))
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            try:
                if wait:
                    time.sleep(wait)
                self.send_response(status)
                for name, value in {
                    "content-type": "application/json",
                    "content-length": str(len(data)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                return  # the client has gone

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
