"""A supervisor as a process of its own: driver, supervisor and worker can each be killed without the others' leave.

The driver sends whole comparisons over a socket and gets samples or a fault back. The supervisor dies with the driver
and the worker with the supervisor; a supervisor that ends costs the comparison it had, which is repeated by the next.
Both ends are this program, so objects travel as they are; what a worker says is examined before it gets here.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from amk.agent.device.gpu_backend import GpuBackend
from amk.agent.device.measure import Fault, Job, Samples
from amk.agent.device.supervisor import WORKER, Supervisor
from amk.agent.gate.gate import Ready
from amk.agent.gate.isolation import die_with, is_stopped
from amk.processes import python_module, worker_environment

LOOK = 0.5
"""Seconds between two looks at a supervisor."""
CLOSING = 5.0
"""Seconds that a supervisor has to end its worker when the search ends."""

Comparison = tuple[Job, Ready, Ready]
Request = tuple[Literal["measure"], Comparison] | tuple[Literal["stop"], None]


@dataclass(frozen=True)
class Post:
    """What a server supervises: device `device`, called `name`, on the card `card`. `command` starts its worker."""

    name: str
    device: int
    log: Path
    card: str = ""
    command: Sequence[str] = WORKER

    def backend(self) -> GpuBackend:
        return GpuBackend(Supervisor(self.log, self.device, self.command), self.name, card=self.card)


@dataclass
class _Server:
    popen: subprocess.Popen[bytes]
    channel: Connection


@dataclass
class ServerBackend:
    """A device behind a supervisor process. `measure` must always be called from one thread that outlives the server:
    the kernel's parent-death signal follows the thread.
    """

    post: Post
    simulated: bool = False
    _server: _Server | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _sending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def label(self) -> str:
        return self.post.name

    @property
    def device(self) -> str:
        return f"{self.post.name} #{self.post.device}"

    @property
    def card(self) -> str:
        return self.post.card

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        """What the device server measured; `lost` if it ended before it said."""
        began = time.monotonic()
        if self._stopped.is_set():
            return Fault("stopped", "the search ends")
        try:
            server = self._server or self._start()
            self._send(("measure", (job, incumbent, candidate)))
            self._wait(server)
            found: Samples | Fault = server.channel.recv()
        except (EOFError, OSError) as error:
            how = self._reap()
            detail = f"the supervisor ended ({how}) before the result was written: {type(error).__name__}"
            return Fault("lost", detail, time.monotonic() - began)
        return found

    def _wait(self, server: _Server) -> None:
        """Until there is an answer. The supervisor keeps the deadlines of its worker; one that is itself stopped
        keeps none, so it is ended when it stood still at two looks in a row."""
        stops = 0
        while not server.channel.poll(LOOK):
            stops = stops + 1 if is_stopped(server.popen.pid) else 0
            if stops > 1:
                server.popen.kill()

    def stop(self) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._send(("stop", None))

    def close(self) -> None:
        self._stopped.set()
        server = self._server
        if server is not None:
            server.channel.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.popen.wait(CLOSING)
            self._reap()

    def _send(self, request: Request) -> None:
        server = self._server
        if server is not None:
            with self._sending:
                server.channel.send(request)

    def _start(self) -> _Server:
        ours, theirs = socket.socketpair()
        words = [*python_module("amk.agent.device.device_server"), str(os.getpid()), str(theirs.fileno())]
        with theirs:
            popen = subprocess.Popen(
                words, env=worker_environment(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        channel = Connection(ours.detach())
        self._server = _Server(popen, channel)
        channel.send(self.post)
        return self._server

    def _reap(self) -> str:
        """End what is left of the device server; how it ended."""
        server, self._server = self._server, None
        if server is None:
            return "not started"
        server.popen.kill()
        code = server.popen.wait()
        server.channel.close()
        return f"status {code}"


def serve(parent: int, descriptor: int) -> None:
    """The supervisor's process: until the driver closes the channel or dies."""
    die_with(parent)
    channel = Connection(descriptor)
    backend = channel.recv().backend()
    waiting: queue.SimpleQueue[Comparison | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, backend, waiting), daemon=True).start()
    while (comparison := waiting.get()) is not None:
        found = backend.measure(*comparison)
        with contextlib.suppress(OSError):
            channel.send(found)
    backend.close()


def _listen(channel: Connection, backend: GpuBackend, waiting: queue.SimpleQueue[Comparison | None]) -> None:
    """Orders of the driver. Only comparisons wait for each other."""
    while True:
        try:
            request: Request = channel.recv()
        except (EOFError, OSError):
            backend.stop()
            waiting.put(None)
            return
        if request[0] == "measure":
            waiting.put(request[1])
        else:
            backend.stop()


if __name__ == "__main__":
    from amk.agent.device import device_server  # the channel's objects are those of the module, not of __main__

    device_server.serve(int(sys.argv[1]), int(sys.argv[2]))
