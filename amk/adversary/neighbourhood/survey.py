"""What becomes of an edited schedule: refused, SAFE, UNSAFE or UNKNOWN, what the checker says, and what a run shows.

A *hole* is what must not be: a SAFE schedule that the judge refutes, or a certificate accepted for one that it refutes.
"""

from __future__ import annotations

import json
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

from pydantic import ValidationError

from amk.adversary.edits import Json, apply
from amk.adversary.neighbourhood.mutator import Change
from amk.checker.certificate import UNREADABLE, Proof, check_certificate
from amk.checker.programs import Rejected
from amk.judges.judge import Ruling, judge
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import Verdict, verify

SECONDS = 20.0
"""That `verify` is given."""
PATIENCE = 60.0
"""Seconds for all that is done with one edit."""
MEMORY = 8 << 30
TOO_MUCH = ("too long", "too much memory")
"""Why an edit ended without a verdict although the tool did nothing wrong."""
EVERYTHING = 99
"""Requests to the judge: all that it has."""
Verify = Callable[[Schedule], Verdict]


@dataclass(frozen=True)
class Care:
    """Requests to the judge about a schedule that is SAFE, and about one that is not. One that is not SAFE and whose
    certificate the checker accepts is judged like a SAFE one. certificates: whether the checker is asked."""

    safe: int = 1
    other: int = 1
    certificates: bool = True


USUAL = Care()


@dataclass(frozen=True)
class Outcome:
    """verdict: refused, same, SAFE, UNSAFE, UNKNOWN, or error. codes: of the findings. certificate: of a SAFE schedule,
    accepted or refused; of another, accepted if the checker alone takes what could be made or forged for it. judge:
    not refuted, unrun, or what refuted it; empty if it was not asked. asked: requests that it had at most."""

    verdict: str
    codes: tuple[str, ...] = ()
    certificate: str = ""
    judge: str = ""
    why: str = ""
    asked: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def refuted(self) -> bool:
        return self.judge.startswith("refuted")

    @property
    def hole(self) -> str:
        """The judge of whom it is one."""
        if not self.refuted:
            return ""
        if self.verdict == "SAFE":
            return "validator and checker" if self.certificate == "accepted" else "validator"
        return "checker" if self.certificate.startswith("accepted") else ""

    def as_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v not in ("", (), {}, 0)}


def in_time(schedule: Schedule) -> Verdict:
    """`verify`, which may not take longer than SECONDS."""
    return verify(schedule, timeout_s=SECONDS)


class Survey:
    """The edits of one base. verify: who decides, for tests that plant a hole."""

    def __init__(self, document: Json, verify: Verify | None = None) -> None:
        self._document, self._verify = document, verify or in_time
        base = Schedule.model_validate_json(json.dumps(document))
        self._hash = schedule_hash(base)
        self._base = base

    @cached_property
    def _certificate(self) -> Json:
        """That of the unedited schedule."""
        return json.loads(json.dumps(certify_schedule(self._base)))

    def edited(self, change: Change) -> Json | None:
        """The document after the change; None where a second edit no longer finds its place."""
        try:
            return apply(self._document, list(change.edits))[0]
        except (LookupError, TypeError, AttributeError):
            return None

    def outcome(self, change: Change, care: Care = USUAL) -> Outcome:
        document = self.edited(change)
        if document is None:
            return Outcome("same")
        clock = _Clock()
        try:
            with patience(PATIENCE):
                return self._outcome(document, care, clock)
        except _TooLong:
            return Outcome("error", why=TOO_MUCH[0], seconds=clock.seconds)
        except MemoryError:
            return Outcome("error", why=TOO_MUCH[1], seconds=clock.seconds)
        except Exception as error:  # noqa: BLE001  whatever it is, it is recorded and the others go on
            return Outcome("error", why=f"{type(error).__name__}: {error}"[:300], seconds=clock.seconds)

    def _outcome(self, document: Json, care: Care, clock: _Clock) -> Outcome:
        try:
            schedule = Schedule.model_validate_json(json.dumps(document))
        except ValidationError:
            return Outcome("refused", ("AMK005",))
        digest = schedule_hash(schedule)
        if digest == self._hash:
            return Outcome("same")
        try:
            verdict = self._verify(schedule)
        except AmkError as error:
            return Outcome("refused", tuple(sorted({d.code for d in error.diagnostics})))
        clock.lap("verify")
        certificate = self._checked(schedule, digest, verdict.safe) if care.certificates else ""
        clock.lap("certificate")
        codes = tuple(dict.fromkeys(d.code for d in verdict.diagnostics))
        requests = care.safe if verdict.safe or certificate.startswith("accepted") else care.other
        if not requests:
            return Outcome(verdict.status, codes, certificate, seconds=clock.seconds)
        ruling = judge(schedule, requests)
        clock.lap("judge")
        result, why = _outcome(ruling), ruling.why[:300]
        return Outcome(verdict.status, codes, certificate, result, why, requests, clock.seconds)

    def _checked(self, schedule: Schedule, digest: str, safe: bool) -> str:
        """What the checker makes of the schedule serves all of its certificates: nothing of it depends on them."""
        try:
            proof = Proof(schedule)
        except (Rejected, *UNREADABLE) as error:
            return f"refused: {error}"[:200] if safe else "refused"
        return self._own(schedule, digest, proof) if safe else self._foreign(schedule, digest, proof)

    def _own(self, schedule: Schedule, digest: str, proof: Proof) -> str:
        """The certificate of a SAFE schedule, through text, as a file has it."""
        try:
            certificate = json.loads(json.dumps(certify_schedule(schedule, checked=False, proof=proof)))
        except NotSafe as error:
            return f"none: {error}"[:200]
        found = check_certificate(schedule, digest, certificate, proof)
        return "accepted" if found.accepted else f"refused: {found.reason}"[:200]

    def _foreign(self, schedule: Schedule, digest: str, proof: Proof) -> str:
        """Whether the checker alone accepts what can be made for a schedule that is not SAFE, or the base's own."""
        own, base = partial(certify_schedule, schedule, checked=False, proof=proof), self._restamped(digest)
        for name, make in (("made", own), ("base's", base)):
            try:
                certificate = json.loads(json.dumps(make()))
            except NotSafe:  # nothing can be made: the usual case
                continue
            if check_certificate(schedule, digest, certificate, proof).accepted:
                return f"accepted: {name}"
        return "refused"

    def _restamped(self, digest: str) -> Callable[[], Json]:
        return lambda: self._certificate | {"schedule": digest}


def _outcome(ruling: Ruling) -> str:
    return f"refuted: {ruling.kind}" if ruling.status == "refuted" else ruling.status


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._at = round(now - self._at, 3), now


class _TooLong(BaseException):
    """Not an Exception: nobody on the way catches it."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Raises _TooLong inside after so many seconds; in the main thread."""

    def ring(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Inside, a request for more raises MemoryError, and the search goes on with the next edit."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
