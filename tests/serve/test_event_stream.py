"""A client that takes nothing is let go; one that is slow gets everything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

from amk.serve.event_stream import EventStream
from amk.serve.run import listen
from amk.serve.settings import Limits


def played(events: list[bytes], send_waits: bool, read_seconds: float) -> tuple[list[bytes], bool]:
    """Bodies that were sent, and whether the source of events was closed."""
    sent: list[bytes] = []
    closed = False

    async def source() -> AsyncIterator[bytes]:
        nonlocal closed
        try:
            for each in events:
                yield each
        finally:
            closed = True

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            if send_waits and sent:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            sent.append(message["body"])

    asyncio.run(EventStream(source(), read_seconds)({"type": "http"}, receive, send))
    return sent, closed


def test_a_slow_reader_gets_every_event() -> None:
    events = [b"%d" % number for number in range(20)]
    assert played(events, send_waits=False, read_seconds=5) == ([*events, b""], True)


def test_a_client_that_reads_nothing_is_let_go() -> None:
    assert played([b"a", b"b", b"c"], send_waits=True, read_seconds=0.02) == ([b"a"], True)


def test_a_client_that_goes_while_an_event_is_sent_ends_the_stream() -> None:
    """At every point of sending: the end of a `send` and the client's going fall together in one of them."""

    async def once(steps: int) -> bool:
        closed = asyncio.Event()
        gone = asyncio.Event()

        async def source() -> AsyncIterator[bytes]:
            try:
                yield b"a"
                await asyncio.Event().wait()
            finally:
                closed.set()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                asyncio.get_running_loop().call_soon(gone.set)
                for _ in range(steps):
                    await asyncio.sleep(0)

        async with asyncio.timeout(5):
            await EventStream(source(), 5)({"type": "http"}, receive, send)
        return closed.is_set()

    for steps in range(12):
        assert asyncio.run(once(steps)), steps


def test_what_is_sent_does_not_wait_for_what_was_sent_before() -> None:
    """Nagle's algorithm and delayed acknowledgements make every answer 40 ms later."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken = writer.get_extra_info("socket")
            found.set_result(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=(listening := listen("127.0.0.1", 0, Limits()))):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            return await found

    assert asyncio.run(option())
