"""Kernels with a loop whose number of laps is open: SAFE means safe for every number.

    sys = LoopSystem("ring")
    slots = sys.buffer("slots", 3 * 1024)
    full, empty = sys.counter("full", scope="cta"), sys.counter("empty", scope="cta", init=3)
    with sys.agent("producer") as p, p.loop() as k:
        p.wait(empty, k + 1)
        p.write(slots, k % 3 * 1024, k % 3 * 1024 + 1024, value=("tile", k))
        p.signal(full)

Each agent is straight-line code with at most one `loop`, which runs laps 0 to N - 1. N is the same for all agents, and
`sys.laps` stands for it behind the loop. Numbers may be affine in the lap, with `%` and `//` by constants (`affine`).
Write an inner loop with a constant number of turns as a Python loop. `save` writes a file (`loop_document`).

Property: `unrolled(n)` is the system for n laps, event by event in the order of the program.

Errors: those of `amk.systems.System`, at the caller's line; AMK205 for what is outside of the class.
"""

from __future__ import annotations

from pathlib import Path

from amk.systems.loop_recorder import LoopRecorder
from amk.systems.loop_writer import text_of


class LoopSystem(LoopRecorder):
    """Agents, counters and buffers of a kernel whose loops run `at_least` to `at_most` laps; None: any number.

    count: what the number of laps is called in its file.
    """

    def save(self, path: str | Path) -> None:
        """Write the file that `amk verify` reads."""
        Path(path).write_text(text_of(self) + "\n", encoding="utf-8")
