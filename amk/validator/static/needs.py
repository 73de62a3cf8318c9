"""What device code, host and packed weights rely on: `launch_needs` as findings.

Property: every precondition in the definitions of ops holds at each of their steps, the host finds its buffers, and
what the device counts fits its words. Nothing of it depends on who runs when.

Code: AMK407, behind the findings that say more about the same mistake. Cost: see `launch_needs`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.launch_needs import unmet
from amk.schedule_ir.schedule import Schedule

MOST: Final = 8
"""Findings that are told."""


def check_needs(schedule: Schedule) -> list[Diagnostic]:
    """AMK407 for each precondition that does not hold."""
    return [
        finding("AMK407", f"not so: {message}", path, f"need {need}")
        for path, need, message in islice(unmet(schedule), MOST)
    ]
