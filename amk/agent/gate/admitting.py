"""An admitted kernel on its way from the gate to the worker.

To check a proof takes as long as to make it, so the checker is asked where proofs are made: in many processes, ahead
of the device, whether a worker lives or dies; and what it refuses is a verdict. An `AdmittedKernel` was checked where
it was made, which its seal says. It passes the driver and the supervisor, each of which started the next. A worker that
can tell the seal binds the code by it; else it compiles and reads back again, for which a device waits a second.
"""

from __future__ import annotations

import gc
import json
import pickle
from dataclasses import replace

from amk.engine.admission import admissions
from amk.engine.admission.admission import AdmittedKernel
from amk.lowering import bound
from amk.lowering.stamp import stamp_of
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.of_schedule import evidence


def packed(schedule: Schedule, cubin: bytes) -> bytes:
    """The kernel with a certificate made and checked here. AmkError AMK215 if there is none that the checker takes."""
    collecting = gc.isenabled()
    gc.disable()  # many small objects are made and few die
    try:
        certificate = json.loads(json.dumps(evidence(schedule, checked=False)))
        kernel = AdmittedKernel(schedule, certificate, cubin)
        seal = admissions.sealed(schedule_hash(schedule), certificate, cubin)
        return pickle.dumps(replace(kernel, seal=seal) if seal else kernel)
    except AmkError as error:
        found = error.diagnostics[0]
        if found.code != "AMK206":
            raise
        raise AmkError(Diagnostic("AMK215", found.message), Exit.UNKNOWN) from error
    finally:
        if collecting:
            gc.enable()


def unpacked(data: bytes) -> AdmittedKernel:
    """`packed` again; the code still has to name the schedule (AMK606)."""
    kernel = pickle.loads(data)
    if not isinstance(kernel, AdmittedKernel) or stamp_of(kernel.code) != schedule_hash(kernel.schedule):
        message = "the machine code was not made from this schedule"
        raise AmkError(Diagnostic("AMK606", message), Exit.UNSAFE)
    digest = schedule_hash(kernel.schedule)
    if kernel.seal and admissions.is_admitted(digest, kernel.certificate, kernel.code, kernel.seal):
        bound.note(digest, kernel.code)
    return kernel
