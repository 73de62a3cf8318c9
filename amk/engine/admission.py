"""Only proved schedules run."""

from __future__ import annotations

from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.schedule import Schedule
from amk.validator.resources import CompiledResources
from amk.validator.verify import verify


def admit(schedule: Schedule, compiled: CompiledResources | None = None) -> None:
    """Return if the schedule is SAFE; otherwise an AmkError with verify's findings and its exit code (1 or 3).

    compiled: what the kernel really uses, when it is compiled.
    """
    verdict = verify(schedule, compiled=compiled)
    if not verdict.safe:
        raise AmkError(verdict.diagnostics, Exit.UNSAFE if verdict.status == "UNSAFE" else Exit.UNKNOWN)
