"""Only proved schedules run, and only in the machine code that was made from them.

Every launch of a schedule's kernel loads what `AdmittedKernel.loadable` returns. Hashes tie three things: the text
emitted for the schedule, the PTX that was read back, and the cubin made of it. The process that launches ties them, or
one of the same user and program that sealed what it checked (`admissions`). A start with such a seal imports neither
validator nor checker nor compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amk.engine.admission import admissions, certificates
from amk.lowering import bound
from amk.lowering.cubin import Resources, elf_resources
from amk.lowering.emit import KERNEL
from amk.lowering.stamp import stamp_of
from amk.report.diagnostic import AmkError, Diagnostic, Exit, shown
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.static.resources import CompiledResources, check_resources

if TYPE_CHECKING:
    from amk.validator.verify import Verdict

REFUSED = "AMK206"
"""The checker's no to a certificate."""


def admit(schedule: Schedule, compiled: CompiledResources | None = None) -> Verdict:
    """The verdict if the schedule is SAFE; otherwise an AmkError with verify's findings and its exit code (1 or 3).

    compiled: what the kernel really uses, when it is compiled.
    """
    from amk.validator.verify import verify

    verdict = verify(schedule, compiled=compiled)
    if not verdict.safe:
        raise AmkError(verdict.diagnostics, Exit.UNSAFE if verdict.status == "UNSAFE" else Exit.UNKNOWN)
    return verdict


@dataclass(frozen=True)
class AdmittedKernel:
    """A schedule, the certificate that proves it, and its machine code: the only thing that the launcher takes.

    code: a cubin, or PTX for a GPU of another architecture. Making one checks, in this order:

    * the certificate proves this schedule (AMK206);
    * the code carries this schedule's hash (AMK606);
    * PTX synchronises as the schedule says (AMK607, AMK609);
    * the code is what the compiler makes of this schedule (AMK608);
    * all workers are resident with the registers and shared memory of the cubin (AMK401, 402, 403).

    seal: of a process of this user that made all of these checks with this program. Where it holds they are not made
    again; where it does not it changes nothing.
    """

    schedule: Schedule
    certificate: Any
    code: bytes | str
    seal: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        digest = schedule_hash(self.schedule)
        if self.seal and admissions.is_admitted(digest, self.certificate, self.code, self.seal):
            bound.note(digest, self.code)
            return
        self._check(digest)

    def _check(self, digest: str) -> None:
        from amk.checker.certificate import check_certificate
        from amk.lowering.kernel import bind, read_back

        verdict = check_certificate(self.schedule, digest, self.certificate)
        if not verdict.accepted:
            raise AmkError(Diagnostic(REFUSED, verdict.reason), Exit.UNSAFE)
        found = stamp_of(self.code)
        if found != digest:
            facts = (shown(f"schedule {digest}"), shown(f"code     {found or 'names no schedule'}"))
            message = "the machine code was not made from this schedule"
            raise AmkError(Diagnostic("AMK606", message, facts=facts), Exit.UNSAFE)
        if isinstance(self.code, str):
            read_back(self.schedule, self.code)
        bind(self.schedule, self.code)
        if found_resources := self.resources:
            self.check_used(CompiledResources(found_resources.registers, found_resources.static_smem))

    def loadable(self) -> bytes | str:
        """The code for the driver, made and bound by the process that loads it: an object from another is no proof.

        `code` itself if this process built it, finds it in the user's cache, or saw its seal. Otherwise the cubin that
        this process compiles: ptxas may number registers differently in another process, with the same compiler and
        the same text.
        """
        if bound.is_noted(schedule_hash(self.schedule), self.code):
            return self.code
        from amk.lowering.kernel import build, is_bound

        if is_bound(self.schedule, self.code):
            return self.code
        code = build(self.schedule).compiled
        return code.ptx if isinstance(self.code, str) else code.cubin

    @property
    def resources(self) -> Resources | None:
        """What the cubin uses; None for PTX, which the driver compiles."""
        return self.resources_of(self.code)

    def resources_of(self, code: bytes | str) -> Resources | None:
        """What a cubin of this schedule uses; None for PTX."""
        return None if isinstance(code, str) else elf_resources(code, self.schedule.target.arch)[KERNEL]

    def check_used(self, resources: CompiledResources) -> None:
        """AMK401, 402 or 403 if the workers are not all resident with these registers and this shared memory."""
        if found := check_resources(self.schedule, resources):
            raise AmkError(found, Exit.UNSAFE)


def admitted(schedule: Schedule, code: bytes | str) -> AdmittedKernel:
    """The kernel with a certificate made here. AMK215 if the checker, which is asked once, accepts none."""
    from amk.validator.export.of_schedule import evidence

    try:
        return AdmittedKernel(schedule, evidence(schedule, checked=False), code)
    except AmkError as error:
        if error.diagnostics[0].code != REFUSED:
            raise
        raise AmkError(Diagnostic("AMK215", error.diagnostics[0].message), Exit.UNKNOWN) from error


def started(schedule: Schedule) -> AdmittedKernel:
    """The schedule verified, compiled and admitted, or what `admit`, `build` and `admitted` raise.

    What an earlier start of this user and program admitted and sealed is taken as it is. Else, if the checker accepts
    the certificate of an earlier start, that is the proof; if not, it is made anew.
    """
    digest = schedule_hash(schedule)
    certificate, sealed = certificates.load(digest), admissions.load(digest)
    if sealed is not None and admissions.is_admitted(digest, certificate, *sealed):
        return AdmittedKernel(schedule, certificate, *sealed)
    kernel = _proved_before(schedule, certificate) or _proved(schedule)
    admissions.keep(digest, kernel.certificate, kernel.code)
    return kernel


def _proved_before(schedule: Schedule, certificate: Any) -> AdmittedKernel | None:
    from amk.lowering.kernel import build

    if certificate is None:
        return None
    try:
        return AdmittedKernel(schedule, certificate, build(schedule).compiled.cubin)
    except AmkError as error:
        if error.diagnostics[0].code != REFUSED:
            raise
        return None


def _proved(schedule: Schedule) -> AdmittedKernel:
    from amk.lowering.kernel import build

    admit(schedule)
    kernel = admitted(schedule, build(schedule).compiled.cubin)
    certificates.keep(schedule_hash(schedule), kernel.certificate)
    return kernel


def why_not_admitted(schedule: Schedule) -> str | None:
    """Of a SAFE schedule: None if it compiles within its budget, or there is no compiler, and has a certificate that
    the checker accepts; else the code and message."""
    from amk.lowering.kernel import why_not_built
    from amk.validator.export.of_schedule import evidence

    if (reason := why_not_built(schedule)) is not None:
        return reason
    try:
        evidence(schedule)
    except AmkError as error:
        return f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"
    return None
