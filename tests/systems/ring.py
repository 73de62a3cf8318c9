"""A ring of slots between a producer and a consumer, right and wrong in the usual ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amk.systems import System

TILE = 1024


@dataclass(frozen=True)
class Mistake:
    """What is done wrong; the defaults are right."""

    slots: int = 3
    free: int | None = None
    """Free slots at the start, if not all."""
    laps: int = 3
    at_once: int = 1
    """Tiles that the consumer wants before it gives one back."""
    short: int = 0
    """How much too low the wait for a tile is."""
    wait: Literal["acquire", "relaxed"] = "acquire"
    signal: Literal["release", "relaxed"] = "release"
    early: bool = False
    """The slot is given back before it is read."""
    unasked: bool = False
    """The producer does not wait for a free slot."""


def ring(mistake: Mistake = Mistake()) -> System:
    m, sys = mistake, System("ring")
    tiles = m.slots * m.laps
    slots = sys.buffer("slots", m.slots * TILE)
    full = sys.counter("full", scope="cta")
    empty = sys.counter("empty", scope="cta", init=m.slots if m.free is None else m.free)
    with sys.agent("producer") as p:
        for k in range(tiles):
            lo = k % m.slots * TILE
            if not m.unasked:
                p.wait(empty, k + 1)
            p.write(slots, lo, lo + TILE, value=f"tile {k}")
            p.signal(full, order=m.signal)
    with sys.agent("consumer") as c:
        for k in range(tiles):
            lo = k % m.slots * TILE
            c.wait(full, min(k + m.at_once, tiles) - m.short, order=m.wait)
            if m.early:
                c.signal(empty)
            c.read(slots, lo, lo + TILE, value=f"tile {k}")
            if not m.early:
                c.signal(empty)
    return sys


def line_of(text: str) -> int:
    """The line of this file that holds the text; there is one."""
    with open(__file__, encoding="utf-8") as file:
        (found,) = (number for number, line in enumerate(file, 1) if text in line and "line_of(" not in line)
    return found


WAIT_EMPTY, WRITE = line_of("p.wait(empty"), line_of("p.write(slots")
SIGNAL_FULL, WAIT_FULL, READ = line_of("p.signal(full"), line_of("c.wait(full"), line_of("c.read(slots")
