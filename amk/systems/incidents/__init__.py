"""Published bugs of kernels, each as its report tells it and with its fix: see README.md here.

`load` has them by name. `made(True)` is the kernel with the fix, `made(False)` without.
"""

from __future__ import annotations

from amk.systems.incidents import copies, flags, fleet, fleet_layers, kernels, parities, warps  # noqa: F401
from amk.systems.incidents.registry import INCIDENTS, Incident

__all__ = ["Incident", "load"]


def load() -> dict[str, Incident]:
    """All of them."""
    return INCIDENTS
