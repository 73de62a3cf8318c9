"""One worker process and its deadlines.

A question that is not answered in time costs the worker: the abort word is set, after a short grace the process group
is killed, a new worker runs a canary. Two failed canaries in a row quarantine the device. Only the
monotonic clock counts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from amk.agent.device.measure import Fault
from amk.agent.device.wire import MAX_ANSWER, Answer, Canary, Open, Question
from amk.agent.gate.isolation import resident_bytes
from amk.bench.tools.hardware import smi_name
from amk.processes import python_module, worker_environment

WORKER = python_module("amk.agent.device.worker")
GRACE = 2.0
TICK = 0.05
CANARIES = 2
HOST_BYTES = 64 * 2**30
NONCE_BITS = 62


@dataclass
class _Process:
    popen: subprocess.Popen[bytes]
    answers: int
    aborts: int
    buffer: bytearray = field(default_factory=bytearray)


@dataclass
class Supervisor:
    """`device` is the GPU's ordinal here; the worker sees that one alone, as its first: whatever takes a default device
    takes it. `log` is where the worker's own output goes; host_bytes bounds the worker's memory.

    Must be used from one thread that outlives the worker: the kernel's parent-death signal follows the thread.
    """

    log: Path
    device: int = 0
    command: Sequence[str] = WORKER
    host_bytes: int = HOST_BYTES
    open_seconds: float = 120.0
    grace: float = GRACE
    device_name: str = ""
    starts: int = 0
    kills: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set from another thread: the question under way ends with a fault, and no worker is started any more."""

    _process: _Process | None = None

    def fresh(self) -> Fault | None:
        """A new worker process in place of the old one, if any."""
        self.kill()
        return self._start()

    def ready(self) -> Fault | None:
        """A worker that answers, started if there is none; after a kill it has passed the canary."""
        if self._process is not None and self._process.popen.poll() is None:
            return None
        self.kill()
        return self._start()

    def ask(self, question: Question, seconds: float) -> Answer | Fault:
        """The worker's answer within `seconds`, or why there is none; after a fault the worker is gone."""
        began = time.monotonic()
        process = self._process
        if process is None:
            return Fault("no_worker", "the worker is not running")
        fault = self._send(process, question.model_dump_json().encode() + b"\n", began + seconds)
        result = fault or self._receive(process, question.nonce, began + seconds)
        self._log(question.do, time.monotonic() - began)
        if isinstance(result, Fault):
            if result.kind == "deadline":
                self._abort(process)
            self.kill()
            return Fault(result.kind, result.detail, time.monotonic() - began, result.suspect)
        return result

    def _log(self, what: str, seconds: float) -> None:
        """Where a search's device time goes, beside what the worker printed; blocks are in the journal."""
        if what != "block":
            with contextlib.suppress(OSError), open(self.log, "a", encoding="utf-8") as log:
                log.write(f"{what}: {seconds:.3f} s\n")

    def recover(self) -> Fault | None:
        """After a fault: a new worker that passes the canary, or a fault `device_lost` after two that did not."""
        last = ""
        for _ in range(CANARIES):
            fault = self.fresh()
            if fault is None:
                answered = self.ask(Canary(nonce=nonce()), self.open_seconds)
                if isinstance(answered, Answer) and not answered.error:
                    return None
                fault = answered if isinstance(answered, Fault) else Fault("canary", answered.error)
            last = f"{fault.kind}: {fault.detail}"
        self.kill()
        return Fault("device_lost", f"{CANARIES} canaries in a row failed, the last with {last}")

    def kill(self) -> None:
        """End the worker's whole process group; a stopped one too."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.popen.pid, signal.SIGKILL)
        process.popen.wait()
        for descriptor in (process.answers, process.aborts):
            os.close(descriptor)
        if process.popen.stdin is not None:
            with contextlib.suppress(OSError):
                process.popen.stdin.close()
        self.kills += 1

    def _start(self) -> Fault | None:
        if self.stopping.is_set():
            return Fault("stopped", "the search ends")
        answers, answers_out = os.pipe()
        aborts_in, aborts = os.pipe()
        words = [*self.command, str(os.getpid()), str(answers_out), str(aborts_in)]
        environment = worker_environment(os.environ) | {"CUDA_VISIBLE_DEVICES": smi_name(self.device)}
        try:
            with open(self.log, "ab") as log:
                popen = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment,
                    pass_fds=(answers_out, aborts_in), start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            os.close(answers)
            os.close(aborts)
            return Fault("no_worker", f"the worker cannot be started: {error}")
        finally:
            os.close(answers_out)
            os.close(aborts_in)
        os.set_blocking(answers, False)
        assert popen.stdin is not None
        os.set_blocking(popen.stdin.fileno(), False)
        self._process = _Process(popen, answers, aborts)
        self.starts += 1
        opened = self.ask(Open(nonce=nonce()), self.open_seconds)
        if isinstance(opened, Fault):
            return opened
        if opened.error:
            self.kill()
            return Fault(opened.kind, opened.error)
        self.device_name = opened.device
        return None

    def _abort(self, process: _Process) -> None:
        """Ask nicely: set the abort word and let the worker come back within the grace period."""
        with contextlib.suppress(OSError):
            os.write(process.aborts, b"x")
        until = time.monotonic() + self.grace
        while time.monotonic() < until and process.popen.poll() is None:
            if select.select([process.answers], [], [], TICK)[0]:
                return

    def _send(self, process: _Process, data: bytes, until: float) -> Fault | None:
        assert process.popen.stdin is not None
        descriptor, view = process.popen.stdin.fileno(), memoryview(data)
        while view:
            if fault := self._health(process, until):
                return fault
            if select.select([], [descriptor], [], TICK)[1]:
                try:
                    view = view[os.write(descriptor, view) :]
                except BlockingIOError:
                    continue
                except OSError:
                    return self._death(process)
        return None

    def _receive(self, process: _Process, expected: int, until: float) -> Answer | Fault:
        while b"\n" not in process.buffer:
            if select.select([process.answers], [], [], TICK)[0]:
                data = os.read(process.answers, 65536)
                if not data:
                    return self._death(process)
                process.buffer += data
                if len(process.buffer) > MAX_ANSWER:
                    return Fault("protocol", "an answer without end", suspect=True)
            elif fault := self._health(process, until):
                return fault
        line, _, rest = process.buffer.partition(b"\n")
        process.buffer = bytearray(rest)
        try:
            found = Answer.model_validate_json(bytes(line))
        except ValidationError:
            return Fault("protocol", "an answer that does not match its schema", suspect=True)
        if found.nonce != expected:
            return Fault("stale_nonce", "an answer to another question", suspect=True)
        return found

    def _health(self, process: _Process, until: float) -> Fault | None:
        if time.monotonic() > until:
            return Fault("deadline", "no answer in time")
        if self.stopping.is_set():
            return Fault("stopped", "the search ends")
        if process.popen.poll() is not None:
            return self._death(process)
        if resident_bytes(process.popen.pid) > self.host_bytes:
            return Fault("memory", f"the worker uses more than {self.host_bytes:,} bytes")
        return None

    def _death(self, process: _Process) -> Fault:
        try:
            code = process.popen.wait(timeout=self.grace)
        except subprocess.TimeoutExpired:
            return Fault("crashed", "the worker closed its pipe")
        if code < 0:
            return Fault("crashed", f"the worker was ended by {signal.Signals(-code).name}")
        return Fault("exited", f"the worker ended with status {code}")


def nonce() -> int:
    return secrets.randbits(NONCE_BITS) + 1
