"""Certificates of schedules: the flat system of one launch, with the evidence that the independent checker
    accepts.

Covers the interleavings of `tokens` tokens from position `pos` with word edges. That more tokens, other positions and
more layers follow is argued in `epochs`, `abstraction` and `reduce`, and not part of the certificate; fences and
hints are not either. Possible where the flat clocks fit in memory: small schedules.
"""

from __future__ import annotations

from typing import Any

from amk.schedule_ir.schedule import Schedule
from amk.validator.evidence.flat_system import expand
from amk.validator.export.certificate import make_certificate
from amk.validator.memory.flat import judge


def certify(schedule: Schedule, pos: int = 0, tokens: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """(system, certificate) as JSON for `checker.check`; raises NotSafe, TooLarge or ClocksTooLarge."""
    system = expand(schedule, pos, tokens, "word").system
    return system.to_json(), make_certificate(judge(system))
