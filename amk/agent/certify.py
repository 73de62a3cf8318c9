"""The seam to the validator: a schedule goes in, SAFE, UNSAFE or UNKNOWN comes out with its reasons.

The search can neither weaken nor skip it: where no validator can be loaded every schedule is UNKNOWN, and UNKNOWN
never reaches a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

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
