"""A response of server-sent events that notices when its client goes, or does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

KEEP_ALIVE = b": waiting\n\n"
"""A comment, which clients ignore."""
KEEP_ALIVE_SECONDS = 15.0


class EventStream(Response):
    """Sends what `events` yields, and closes it when the client is gone or takes nothing for `read_seconds`."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], read_seconds: float) -> None:
        self.status_code, self.background = 200, None
        self._events, self._read_seconds = events, read_seconds
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(client_gone(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
        error = None if sending.cancelled() else sending.exception()
        if error is not None and not isinstance(error, TimeoutError):
            raise error

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for part in with_keep_alive(self._events):
                async with asyncio.timeout(self._read_seconds):  # `wait_for` may swallow a cancellation
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if (close := getattr(self._events, "aclose", None)) is not None:
                await close()


async def with_keep_alive(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events, and a comment whenever there is none for a while: a connection without traffic is taken for dead."""
    coming = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait((coming,), timeout=KEEP_ALIVE_SECONDS)
            if not done:
                yield KEEP_ALIVE
                continue
            if (part := coming.result()) is None:
                return
            yield part
            coming = asyncio.ensure_future(anext(events, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def client_gone(receive: Receive) -> None:
    """Returns when the connection is closed by the other side."""
    while (await receive())["type"] != "http.disconnect":
        pass
