"""Kernels made ahead of their rows, each in a process of its own: proof and compilation outlast many a row."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

from amk.engine.admission.admission import AdmittedKernel, admitted
from amk.lowering.kernel import build
from amk.processes import process_pool
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.schedule import Schedule

PROCESSES = 4
"""At a time: the measuring process needs a core, and a proof some memory."""

Refused = tuple[tuple[Diagnostic, ...], Exit]


def kernel_of(schedule: Schedule) -> AdmittedKernel:
    return admitted(schedule, build(schedule).compiled.cubin)


def kernel_or_refusal(schedule: Schedule) -> AdmittedKernel | Refused:
    """What another process hands back: an exception would lose its diagnostics on the way."""
    try:
        return kernel_of(schedule)
    except AmkError as error:
        return error.diagnostics, error.exit_code


@dataclass
class Ahead:
    """`schedules`: in the order in which they are asked for. A single one is made by the process that asks."""

    schedules: Sequence[Schedule]
    pool: ProcessPoolExecutor | None = None
    futures: dict[int, Future[AdmittedKernel | Refused]] = field(default_factory=dict)

    def __enter__(self) -> Ahead:
        if len(self.schedules) > 1:
            count = min(PROCESSES, len(self.schedules))
            self.pool = process_pool(count)
            self.futures = {id(each): self.pool.submit(kernel_or_refusal, each) for each in self.schedules}
        return self

    def kernel(self, schedule: Schedule) -> AdmittedKernel:
        """Raises what `kernel_of` raises."""
        future = self.futures.pop(id(schedule), None)
        found = kernel_of(schedule) if future is None else future.result()
        if isinstance(found, AdmittedKernel):
            return found
        raise AmkError(*found)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
