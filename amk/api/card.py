"""The GPU of this machine as a planning target, found without an error where there is none."""

from __future__ import annotations

import os
from typing import NamedTuple

from amk.report.diagnostic import AmkError, Diagnostic, Severity
from amk.targets.target import Target, targets

_DRIVER = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
"""One of these exists wherever a driver can be used."""


class Card(NamedTuple):
    """name: as the driver says it. arch: what code is compiled for. sms: streaming multiprocessors."""

    name: str
    arch: str
    sms: int


def has_driver() -> bool:
    """Whether a driver can be used; takes no import of the driver's package."""
    return any(map(os.path.exists, _DRIVER))


def usable_card() -> Card | None:
    """The first GPU, if it can run a kernel. Its context stays: whoever asks goes on to use it, and it takes 0.1 s."""
    if not has_driver():
        return None
    from amk.lowering.launch import Device

    try:
        device = Device.open()
    except AmkError:
        return None
    return Card(device.name, device.arch, device.sm_count)


def target_of(card: Card) -> Target | None:
    """The known target with the architecture and SMs of a card, by name where several have them; None if there is none.

    A target of another memory size or clock runs as well: both only steer the plan.
    """
    fitting = [target for target in targets() if (target.arch, target.sms) == (card.arch, card.sms)]
    words = card.name.lower().replace("-", " ").split()
    named = [target for target in fitting if all(word in words for word in target.name.lower().split("-"))]
    return next(iter(named or fitting), None)


def interpreted() -> Diagnostic:
    """The word with which a schedule runs on the CPU because there is no GPU."""
    message = "there is no GPU that can be used: numpy runs the schedule, which takes seconds to minutes a token"
    help_text = "leave --schedule and --gpu out to compute with the weights as they are stored, which is faster"
    return Diagnostic("AMK602", message, severity=Severity.NOTE, help=help_text)


def on_the_cpu(reason: str) -> Diagnostic:
    """The word with which a model that was given no device runs on the CPU."""
    return Diagnostic("AMK602", f"{reason}: the model computes on the CPU", severity=Severity.NOTE)
