"""The seam to the validator: a schedule goes in, SAFE, UNSAFE or UNKNOWN comes out with its reasons.

The search can neither weaken nor skip it, and UNKNOWN never reaches a GPU.
"""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from amk.report.diagnostic import Severity
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule

if TYPE_CHECKING:
    from amk.validator.verify import Verdict

Outcome = Literal["SAFE", "UNSAFE", "UNKNOWN"]


@dataclass(frozen=True)
class Judgement:
    """`codes` are the reason codes of a verdict that is not SAFE; `certificate` is the evidence of one that is."""

    outcome: Outcome
    codes: tuple[str, ...] = ()
    detail: str = ""
    certificate: str = ""


class Certifier(Protocol):
    def __call__(self, schedule: Schedule) -> Judgement: ...


TIMEOUT = 120.0
"""Seconds after which a verdict is UNKNOWN."""
GLANCE = 10.0
"""The same for what is not proposed, while a proposer waits: most verdicts take one second, but what explains that a
schedule is UNSAFE may take minutes, and nobody reads it. Of the processor, so that other load does not change what is
proposed."""


class _LateError(BaseException):
    """The time is over."""


def installed(timeout_s: float = TIMEOUT) -> Certifier:
    """The validator of this installation as a certifier."""
    from amk.validator.verify import verify

    return lambda schedule: judged(schedule, verify(schedule, timeout_s=timeout_s))


def glancing() -> Certifier:
    """The same, ended after GLANCE seconds of this process where it is asked in the main thread, whatever it is at."""
    certify, elsewhere = installed(), installed(GLANCE)

    def late(*_: object) -> None:
        raise _LateError

    def glance(schedule: Schedule) -> Judgement:
        if threading.current_thread() is not threading.main_thread():
            return elsewhere(schedule)
        before = signal.signal(signal.SIGPROF, late)
        try:
            signal.setitimer(signal.ITIMER_PROF, GLANCE)
            return certify(schedule)
        except _LateError:
            return Judgement("UNKNOWN", ("AMK205",), f"no verdict within {GLANCE:g} s of the processor")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)

    return glance


def judged(schedule: Schedule, verdict: Verdict) -> Judgement:
    """A verdict as the search uses it. Anything but a plain, deterministic SAFE is not SAFE."""
    reasons = [d for d in verdict.diagnostics if d.severity is Severity.ERROR] or list(verdict.diagnostics)
    codes = tuple(dict.fromkeys(d.code for d in reasons))
    detail = "; ".join(d.message for d in reasons[:3])
    if verdict.status != "SAFE" or not verdict.deterministic:
        outcome: Outcome = "UNSAFE" if verdict.status == "UNSAFE" else "UNKNOWN"
        return Judgement(outcome, codes, detail)
    record = {
        "verdict": verdict.status,
        "schedule": schedule_hash(schedule),
        "deterministic": verdict.deterministic,
        "tokens_to_wrap": verdict.tokens_to_wrap,
        "stats": verdict.stats,
        "proofs": [{"name": p.obligation.name, "outcome": p.outcome} for p in verdict.proofs],
    }
    return Judgement("SAFE", certificate=json.dumps(record, sort_keys=True))
