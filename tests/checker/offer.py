"""What the checker alone says of an edited schedule, whatever certificate it is offered."""

from __future__ import annotations

import json
from typing import Any

from amk.checker.certificate import check_certificate
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule

Certificate = dict[str, Any]


def certificate_of(schedule: Schedule) -> Certificate | str:
    """The best that can honestly be said for a schedule, safe or not; the reason if nothing can."""
    try:
        found: Certificate = json.loads(json.dumps(certify_schedule(schedule, checked=False)))
    except NotSafe as reason:
        return str(reason)
    return found


def reasons(schedule: Schedule, twin: Certificate | None = None) -> list[str]:
    """Why the checker refuses its own certificate, and that of a twin under its name; "" where it accepts."""
    own = certificate_of(schedule)
    found = [own] if isinstance(own, str) else [check_certificate(schedule, schedule_hash(schedule), own).reason]
    if twin is not None:
        renamed = twin | {"schedule": schedule_hash(schedule)}
        found.append(check_certificate(schedule, schedule_hash(schedule), renamed).reason)
    return found
