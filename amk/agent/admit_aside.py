"""Admission of a kernel in a process of its own, so that checking the next proof does not hold up the GPU.

The process belongs to the worker, which dies with it and trusts it as itself: an `AdmittedKernel` was checked where it
was made. It never touches the GPU.
"""

from __future__ import annotations

import json
import os
import signal

from amk.agent.isolation import die_with
from amk.engine.admission import AdmittedKernel
from amk.schedule_ir.schedule import Schedule

STAGERS = 8
"""At most. Checking one proof takes longer than one screen."""
NICENESS = 5


def stagers_of(cores: int | None) -> int:
    """Checking processes on a machine with so many cores: checking one takes two thirds of what proving and compiling
    takes."""
    return max(2, min(STAGERS, 3 * (cores or 2) // 8))


def begin(parent: int) -> None:
    """Set the process up, which ends with `parent`."""
    die_with(parent)
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def admit(schedule: str, certificate: str, code: bytes) -> AdmittedKernel:
    """The kernel, its certificate and its machine code checked. AmkError if they do not belong together."""
    return AdmittedKernel(Schedule.model_validate_json(schedule), json.loads(certificate), code)
