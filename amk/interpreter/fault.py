"""What can go wrong while a schedule runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A step as one agent meets it: indices into the program's nested step lists, and the loop variables."""

    program: str
    path: tuple[int, ...]
    loops: tuple[tuple[str, int], ...]
    op: str

    def __str__(self) -> str:
        steps = "".join(f".body[{i}]" for i in self.path)
        loops = ", ".join(f"{name}={value}" for name, value in self.loops)
        return f"{self.program}{steps} {self.op} ({loops})"


class Fault(Exception):
    """An access that no correct schedule makes; the run ends at once."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.worker = self.warp = -1
        self.place: Place | None = None

    def locate(self, worker: int, warp: int, place: Place) -> None:
        self.worker, self.warp, self.place = worker, warp, place

    def __str__(self) -> str:
        return f"worker {self.worker}, warp {self.warp}, {self.place}: {self.message}" if self.place else self.message


class PoisonRead(Fault):
    """A read of memory that nothing has written since the launch (or, for state, ever)."""


class OutOfBounds(Fault):
    """An access outside its buffer, or a counter index outside its family."""


class StaleRegisters(Fault):
    """A step that uses token, position or epoch in a warp where they are of another token, or were never loaded."""


class WrongChunk(Fault):
    """A ring slot that does not hold the chunk its consumer drains."""


@dataclass(frozen=True)
class Blocked:
    """An agent that cannot go on, and what it waits for."""

    worker: int
    warp: int
    place: Place
    waits_for: str


class Deadlock(Fault):
    """No agent can run and some have not finished."""

    def __init__(self, blocked: tuple[Blocked, ...]) -> None:
        lines = [f"worker {b.worker}, warp {b.warp} at {b.place} waits for {b.waits_for}" for b in blocked[:8]]
        more = [f"and {len(blocked) - 8} more"] if len(blocked) > 8 else []
        super().__init__("\n".join([f"deadlock: {len(blocked)} agents wait forever", *lines, *more]))
        self.blocked = blocked
