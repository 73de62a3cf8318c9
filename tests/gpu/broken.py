"""Unsafe schedules as machine code, past admission, with delays where their witness says. Not part of the product.

A race's witness names two events that may be enabled together. The step of one of them is held back on its warp by a
spin of some milliseconds, before its waits, so that the other one runs first; then the other way round. A deadlock
needs no delay, and a read of the wrong bytes happens in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amk.adversary.classes.table import BY_NUMBER
from amk.adversary.confusion import drawn, schedule_of
from amk.adversary.edits import Json
from amk.engine.admission.admission import AdmittedKernel
from amk.lowering import emit as emitter
from amk.lowering.compile import compile_cuda
from amk.lowering.printed import PrintedStep
from amk.lowering.stamp import stamped
from amk.schedule_ir.schedule import Schedule, Step
from amk.validator.evidence.confirm import Evidence
from amk.validator.evidence.flat_system import expand
from amk.validator.program.system import System
from amk.validator.program.trace import OUTSIDE_TOKENS
from amk.validator.verify import verify

CLASSES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 18, 20, 21, 22, 36, 42)
"""Classes whose mistakes show in an interleaving of one launch."""
CYCLES = 4_000_000
"""Length of a delay: some 2 ms, a hundred times what a token of these models takes."""
TOKENS = 2
WIDTH = 4
"""The kernel fetches candidates of the next token four at a time, so their number must be a multiple of that."""


@dataclass(frozen=True)
class Place:
    """A step as run by one warp: where a delay goes."""

    step: Step
    worker: int
    warp: int
    token: int
    layer: int

    def delay(self) -> str:
        here = [f"c.worker == {self.worker}", f"c.warp == {self.warp}"]
        here += [f"c.n == {self.token}"] if self.token >= 0 else []
        here += [f"c.l == {self.layer}"] if self.layer >= 0 else []
        spin = f"const long long until = clock64() + {CYCLES}LL; while (clock64() < until) {{}}"
        return f"if ({' && '.join(here)}) {{ {spin} }}\n"


@dataclass(frozen=True)
class Broken:
    """An unsafe schedule, the plan it was made from, what `verify` says of it, and where to delay (one at a time)."""

    seed: str
    schedule: Schedule
    good: Json
    kind: str
    code: str
    places: tuple[Place, ...]


def sample(count: int, part: int = 0, parts: int = 1) -> Iterator[Broken]:
    """The first `count` unsafe mutants with a witness, classes in turn; equal calls, equal schedules.

    part: of all mutants, only each `parts`-th one from this one on.
    """
    found, n = 0, part
    while found < count:
        number, seed = CLASSES[n % len(CLASSES)], f"hardware/{n // len(CLASSES)}"
        n += parts
        mutant = drawn(number, seed)
        assert not isinstance(mutant, System), BY_NUMBER[number].title
        if mutant[1].launch.workers * mutant[1].launch.warps % WIDTH:
            continue
        verdict = verify(mutant[1])
        if verdict.status == "UNSAFE" and verdict.evidence is not None:
            found += 1
            kind = verdict.evidence.witness.kind
            places = places_of(mutant[1], verdict.evidence) if kind == "race" else ()
            code = verdict.diagnostics[0].code
            yield Broken(f"{seed}/{number}", mutant[1], mutant[0][0].document, kind, code, places)


def places_of(schedule: Schedule, evidence: Evidence) -> tuple[Place, ...]:
    """The steps of the witness's events."""
    pos, advance = evidence.start
    flat = expand(schedule, pos, TOKENS, evidence.edges, advance=advance)
    places = []
    for event in evidence.witness.events:
        if flat.system.event_tag[event] < 0:
            continue
        trace, worker, local = flat.owner(event)
        item = trace.items[int(trace.item[local])]
        token = item.token if item.token != OUTSIDE_TOKENS else -1
        places.append(Place(item.step, worker, int(trace.warp_of[local]), token, item.loops.get("l", -1)))
    return tuple(places)


def source(schedule: Schedule, place: Place | None) -> str:
    """The kernel's text with a delay before one step, which is in no loop over parts."""

    class Delayed(emitter._Printer):
        def step(self, node: PrintedStep, pad: str, in_loop: bool = False) -> str:
            text = super().step(node, pad, in_loop)
            return pad + place.delay() + text if place is not None and node.step is place.step else text

    original = emitter._Printer
    emitter._Printer = Delayed  # type: ignore[misc]
    try:
        return emitter.emit(schedule)
    finally:
        emitter._Printer = original  # type: ignore[misc]


class Smuggled(AdmittedKernel):
    """A kernel that the launcher loads although nothing binds its code to its schedule."""

    def loadable(self) -> bytes | str:
        return self.code


def smuggled(schedule: Schedule, place: Place | None = None) -> AdmittedKernel:
    """What the launcher takes, made without the checks that would refuse it."""
    compiled = compile_cuda(stamped(source(schedule, place), schedule), schedule.target.arch)
    kernel = object.__new__(Smuggled)
    for name, value in (("schedule", schedule), ("certificate", None), ("code", compiled.cubin)):
        object.__setattr__(kernel, name, value)
    return kernel


def good_kernel(broken: Broken) -> AdmittedKernel:
    """The repaired schedule, through the same door."""
    return smuggled(schedule_of(broken.good))
