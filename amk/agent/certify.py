"""The seam to the validator: a schedule goes in, SAFE, UNSAFE or UNKNOWN comes out with its reasons.

The search can neither weaken nor skip it: where no validator can be loaded every schedule is UNKNOWN, and UNKNOWN
never reaches a GPU.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.schedule import Schedule

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


class VerdictLike(Protocol):
    """What the validator returns, as far as the search looks at it."""

    @property
    def outcome(self) -> str: ...

    @property
    def diagnostics(self) -> Sequence[Diagnostic]: ...

    @property
    def certificate(self) -> object: ...


def installed() -> Certifier:
    """The validator of this installation as a certifier."""
    try:
        module = importlib.import_module("amk.validator.verify")
    except ModuleNotFoundError as error:
        message = "there is no validator, so nothing can be certified"
        raise AmkError(Diagnostic("AMK901", message), Exit.INTERNAL) from error
    return lambda schedule: judged(module.verify(schedule))


def judged(verdict: VerdictLike) -> Judgement:
    """A verdict as the search uses it. Anything but a plain SAFE is not SAFE."""
    name = str(getattr(verdict.outcome, "value", verdict.outcome)).upper()
    codes = tuple(dict.fromkeys(d.code for d in verdict.diagnostics))
    detail = "; ".join(d.message for d in verdict.diagnostics[:3])
    outcome: Outcome = "SAFE" if name == "SAFE" else "UNSAFE" if name == "UNSAFE" else "UNKNOWN"
    text = json.dumps(verdict.certificate) if outcome == "SAFE" and verdict.certificate is not None else ""
    return Judgement(outcome, codes, detail, text)
