"""A device queue: one device, which compares one pair at a time while the driver gates what comes next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from amk.agent.device.measure import Backend, Fault, Job, Samples
from amk.agent.gate.gate import Ready
from amk.agent.journal.events import Faulted, Measured
from amk.agent.journal.state import START


@dataclass
class DeviceQueue:
    """`failures` counts failed calibrations of the session.

    All its measurements run in one thread that lives as long as the queue, because a worker dies with its thread.
    """

    backend: Backend
    failures: int = 0
    job: Job | None = None
    against: int = START
    _began: float = 0.0
    _ended: float = 0.0
    _future: Future[Samples | Fault] | None = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @property
    def busy(self) -> bool:
        return self._future is not None

    @property
    def ready(self) -> bool:
        """Whether a measurement is over, and not taken."""
        return self._future is not None and self._future.done()

    def start(self, job: Job, against: int, incumbent: Ready, candidate: Ready) -> None:
        """Begin a measurement against the trial with the index `against`."""
        self.job, self.against, self._began = job, against, time.monotonic()
        self._future = self._thread.submit(self._measure, job, incumbent, candidate)

    def _measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        try:
            return self.backend.measure(job, incumbent, candidate)
        finally:
            self._ended = time.monotonic()

    def take(self) -> tuple[Job, Samples | Fault, float]:
        """The job, its result (waited for) and the seconds that the device was taken: until the measurement was over,
        however long a proposer kept the driver from taking it."""
        assert self._future is not None and self.job is not None
        result = self._future.result()
        self._future = None
        return self.job, result, round(max(result.seconds, self._ended - self._began), 6)

    def measured(self, job: Job, result: Samples, seconds: float) -> Measured:
        """What is written down of a measurement."""
        return Measured(
            index=job.index, phase=job.phase, attempt=job.attempt, seconds=seconds, log_ratios=result.log_ratios,
            candidate_ms=result.median_ms("b"), incumbent_ms=result.median_ms("a"), against=self.against,
            device=self.backend.device,
        )  # fmt: skip

    def faulted(self, job: Job, fault: Fault, seconds: float) -> Faulted:
        """What is written down of one that failed."""
        return Faulted(
            index=job.index, phase=job.phase, attempt=job.attempt, seconds=seconds, fault=fault.kind,
            detail=fault.detail[:1000], device=self.backend.device,
        )  # fmt: skip

    def end(self) -> None:
        """Stop what runs and wait for the thread."""
        if self.busy:
            self.backend.stop()
        self._thread.shutdown(wait=True)


def finished(queues: Sequence[DeviceQueue], gated: Iterable[Future[Any]] = ()) -> list[DeviceQueue]:
    """Waits until a busy device has its result; queues that have, in their order. While a device is idle, one of
    `gated` ends the wait too."""
    running: set[Future[Any]] = {queue._future for queue in queues if queue._future is not None}
    idle = any(not queue.busy for queue in queues)
    done = wait(running | set(gated) if idle else running, return_when=FIRST_COMPLETED).done
    return [queue for queue in queues if queue._future in done]
