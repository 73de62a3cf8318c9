"""The verdict on a kernel with a loop whose number of laps is open.

Property: UNSAFE iff an unrolling that was judged is, which is then the witness. SAFE iff every unrolling of up to
`periods` periods is, and the induction (`induction`) holds from there on. UNKNOWN (AMK205) otherwise, with the step of
the induction that fails.

What is read: the last write before a read is at most `reach` periods away, and the orders that decide it do not depend
on the period; an unrolling of 2 * reach + 3 periods holds every such window, the first and the last included. What two
consecutive periods read rightly, whose values are affine in the period, all do.

Cost: one flat verdict for each number of laps that is unrolled.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Final

from amk.report.diagnostic import Diagnostic, because
from amk.report.render import render
from amk.systems.flat_system import FlatSystem
from amk.systems.induction import prove
from amk.systems.loops import LoopSystem
from amk.systems.period import Outside, Period, period_of
from amk.systems.verdict import Status, Verdict, judged

PERIODS: Final = (5, 9, 17)
"""Periods that are unrolled: few first, more where accesses are far apart."""
PEELED: Final = 3
NARROWER: Final = "bound the counts: a loop of few laps, or a parameter of few values, is decided one by one"
MOST: Final = 400
"""Unrollings that are judged."""


@dataclass(frozen=True, eq=False)
class LoopVerdict:
    """`safe`, `verdict`, `explain()`; `unsafe` is the verdict of the smallest unrolling that is not safe."""

    system: LoopSystem
    laps: int
    """The most laps that were unrolled."""
    unsafe: Verdict | None
    unproved: str | None
    seconds: float
    title: str = ""
    """What the verdict is about, where that is more than one system."""

    @property
    def verdict(self) -> Status:
        if self.unsafe is not None:
            return self.unsafe.verdict
        return "SAFE" if self.unproved is None else "UNKNOWN"

    @property
    def safe(self) -> bool:
        return self.verdict == "SAFE"

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        if self.unsafe is not None:
            return self.unsafe.diagnostics
        if self.unproved is None:
            return ()
        upto = because(f"up to {self.laps} laps nothing that was tried is wrong; more is not proved")
        return (Diagnostic("AMK205", self.unproved, facts=(upto,), help=NARROWER),)

    def explain(self) -> str:
        """The verdict as text for people."""
        if self.unsafe is not None:
            return self.unsafe.explain()
        if self.title:
            return f"{self.verdict}  {self.title}\n{render(self.diagnostics)}".rstrip()
        most = "any number of" if self.system.at_most is None else f"up to {self.system.at_most}"
        size = f"{self.system.name}: {len(self.system.agents)} agents, {most} laps"
        return f"{self.verdict}  {size}\n{render(self.diagnostics)}".rstrip()

    def __repr__(self) -> str:
        return f"<{self.explain()}>"


class _Unrollings:
    def __init__(self, system: LoopSystem) -> None:
        self.system = system
        self.known: dict[int, Verdict] = {}

    def __getitem__(self, laps: int) -> Verdict:
        if laps not in self.known:
            self.known[laps] = judged(self.system.unrolled(laps).flat())
        return self.known[laps]

    def first_unsafe(self, most: int) -> Verdict | None:
        numbers = range(self.system.at_least, most + 1)
        return next((self[laps] for laps in numbers if not self[laps].safe), None)


def judged_loops(system: LoopSystem) -> LoopVerdict:
    """Decide."""
    start, unrollings = perf_counter(), _Unrollings(system)
    laps, reason, unsafe = system.period, "", None
    for periods in PERIODS:
        most = laps * (periods + 1) - 1
        if most > MOST:
            break
        bounded = system.at_most is not None and system.at_most <= most
        unsafe = unrollings.first_unsafe(system.at_most if bounded and system.at_most is not None else most)
        if unsafe is not None or bounded:
            return LoopVerdict(system, most, unsafe, None, perf_counter() - start)
        found = _unproved(system, unrollings, periods)
        if found is None:
            return LoopVerdict(system, most, None, None, perf_counter() - start)
        reason = found
    unproved = reason or f"the loop repeats after {laps} laps, too many to unroll"
    return LoopVerdict(system, max(unrollings.known, default=0), None, unproved, perf_counter() - start)


def _unproved(system: LoopSystem, unrollings: _Unrollings, periods: int) -> str | None:
    """None if the induction holds for every rest; else why it does not."""
    for rest in range(system.period):
        reasons: list[str] = []
        for peeled in range(PEELED):
            try:
                reason = _step(period_of(system, peeled, rest), unrollings, periods - peeled)
            except Outside as error:
                return str(error)
            if reason is None:
                break
            reasons.append(reason)
        else:
            return reasons[0]
    return None


def _step(period: Period, unrollings: _Unrollings, periods: int) -> str | None:
    verdicts: dict[int, FlatSystem] = {}
    for number in range(1, periods + 1):
        verdict = unrollings[period.number(number)]
        if verdict.safe:
            verdicts[number] = verdict.system
    if periods not in verdicts:
        return "the unrolling that the induction starts from is not safe"
    return prove(period, {number: one.block for number, one in verdicts.items()}, verdicts[periods].word)
