"""The table of published bugs, and how an encoding enters it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from amk.systems.builder import System

Make = Callable[[System, bool], None]


@dataclass(frozen=True)
class Incident:
    """name, report: the thread that tells it; hardware: what it ran on; code: the finding; says: words in it that name
    the cause; note: what the encoding leaves out or chooses."""

    name: str
    report: str
    hardware: str
    code: str
    says: tuple[str, ...]
    about: str
    make: Make

    def system(self, fixed: bool) -> System:
        system = System(f"{self.name}, {'fixed' if fixed else 'as reported'}")
        self.make(system, fixed)
        return system


INCIDENTS: Final[dict[str, Incident]] = {}
GITHUB: Final = "https://github.com/"


def incident(report: str, code: str, *says: str, hardware: str = "sm_90") -> Callable[[Make], Make]:
    """Registers the encoding of a report: github.com/`report`."""

    def registered(make: Make) -> Make:
        name = make.__name__.replace("_", "-")
        about = " ".join((make.__doc__ or "").split())
        INCIDENTS[name] = Incident(name, GITHUB + report, hardware, code, says, about, make)
        return make

    return registered
