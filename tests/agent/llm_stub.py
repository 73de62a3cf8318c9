"""A language model's HTTP service, as far as the transport can see it: every request gets the next scripted answer."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Script:
    """Answers in order; the last one is repeated. An answer is (status, headers, body, seconds to wait)."""

    answers: list[tuple[int, dict[str, str], Any, float]]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def message(text: str, stop: str = "end_turn", usage: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "stop_reason": stop,
        "stop_sequence": None, "content": [{"type": "text", "text": text}] if text else [],
        "usage": usage or {"input_tokens": 1000, "output_tokens": 100},
    }  # fmt: skip


def error(kind: str, code: str | None = None) -> dict[str, Any]:
    details = {"error_code": code} if code else None
    return {"type": "error", "error": {"type": kind, "message": kind, "details": details}}


def ok(text: str, **more: Any) -> tuple[int, dict[str, str], Any, float]:
    return 200, {}, message(text, **more), 0.0


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The base URL of a server that plays `script`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            script.requests.append(json.loads(self.rfile.read(length)))
            script.headers.append(dict(self.headers))
            status, headers, body, wait = script.answers[min(len(script.requests), len(script.answers)) - 1]
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
