"""Listens, serves, and ends in order: SIGTERM or SIGINT refuses what waits and lets the answers that run end.

An error after which the device cannot be trusted ends it likewise and is raised, so that a supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from types import FrameType

import uvicorn

from amk.report.diagnostic import AmkError, Diagnostic
from amk.serve.app import Server
from amk.serve.settings import Limits

LOOPBACK = ("127.0.0.1", "::1", "localhost")
BACKLOG = 512


def serve(server: Server, listening: socket.socket) -> bool:
    """Until a signal ends it; false if the computing thread does not end. Raises what made the device useless."""
    host, port = listening.getsockname()[:2]
    print(f"serving {server.name} at http://{host}:{port}/v1", file=sys.stderr, flush=True)
    HttpServer(server).run(sockets=[listening])
    ended = server.decoding.stop(seconds=5)
    if server.decoding.failure is not None:
        raise server.decoding.failure
    return ended


class HttpServer(uvicorn.Server):
    """Uvicorn's, which tells the model's queue as soon as it is asked to stop."""

    def __init__(self, server: Server) -> None:
        limits = server.limits
        config = uvicorn.Config(
            server.app, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none",
            limit_concurrency=limits.connections, timeout_graceful_shutdown=int(limits.grace_seconds),
            timeout_keep_alive=30, backlog=BACKLOG,
        )  # fmt: skip
        super().__init__(config)
        self._served = server
        self._loop: asyncio.AbstractEventLoop | None = None
        server.decoding.on_failure = self._end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def _end(self) -> None:
        """As behind a signal, from any thread; whoever is being answered gets its answer."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None:  # a signal handler must not wait for a lock
            self._loop.call_soon_threadsafe(self._served.decoding.drain)
        super().handle_exit(sig, frame)


def listen(host: str, port: int, limits: Limits) -> socket.socket:
    """A socket that takes connections. AMK005 for an address that cannot be had.

    A connection whose other side does not read is closed by the kernel, so that it cannot stay for ever. The protocol
    is named since asyncio sends small parts at once (TCP_NODELAY) only then. Otherwise each waits up to 40 ms until
    the one before it is acknowledged.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * limits.read_seconds))
        listening.bind(address)
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        raise AmkError(Diagnostic("AMK005", f"cannot listen at {host} port {port}: {error}")) from error
    return listening
