"""The verdict on a kernel with a loop whose number of laps is open.

Property: UNSAFE iff an unrolling that was judged is, which is then the witness. SAFE iff every number of laps that is
not proved by induction was unrolled and judged safe, and evidence for the induction was found that the checker accepts
(`loop_proof`). UNKNOWN (AMK205) otherwise, with what the checker refuses.

Cost: one flat verdict for each number of laps that is unrolled, and a guess and a check of evidence for each rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

from amk.report.diagnostic import AmkError, Diagnostic, because
from amk.report.render import render
from amk.systems.loop_evidence import attempt
from amk.systems.loop_proof.check import proved_from
from amk.systems.loop_proof.numbers import Refused
from amk.systems.loop_proof.program import Json, Program
from amk.systems.loop_writer import document_of
from amk.systems.loops import LoopSystem
from amk.systems.rule_reading import Refused as RuleRefused
from amk.systems.verdict import Status, Verdict, judged

PERIODS: Final = (4, 6, 10, 17)
"""Periods that are unrolled: few first, more where accesses are far apart."""
PEEL_CHOICES: Final = 3
NARROWER: Final = "bound the counts: a loop of few laps, or a parameter of few values, is decided one by one"
MOST: Final = 400
"""Unrollings that are judged."""
WIDER: Final = 2
"""Periods more than the fewest laps with a fault: changes are tried on that many."""


@dataclass(frozen=True)
class Proof:
    """Evidence for the numbers of laps that are not unrolled: by rest; period: in laps."""

    program: Program
    period: int
    rests: tuple[Json, ...]


@dataclass(frozen=True, eq=False)
class LoopVerdict:
    """`safe`, `verdict`, `explain()`; `unsafe` is the verdict of the smallest unrolling that is not safe."""

    system: LoopSystem
    laps: int
    """The most laps that were unrolled."""
    unsafe: Verdict | None
    unproved: str | None
    seconds: float
    proofs: tuple[Proof, ...] = ()
    """Of every case, if it is SAFE."""
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
        return (Diagnostic("AMK205", self.unproved, facts=(upto,) if self.laps else (), help=NARROWER),)

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
        self.verdicts: dict[int, Verdict] = {}

    def __getitem__(self, laps: int) -> Verdict:
        if laps not in self.verdicts:
            self.verdicts[laps] = judged(self.system.unrolled(laps).flat())
        return self.verdicts[laps]

    def first_unsafe(self, most: int, period: int) -> Verdict | None:
        """With some laps more to try changes on: what mends one lap need not mend the loop."""
        laps = next((laps for laps in range(self.system.at_least, most + 1) if not self[laps].safe), None)
        if laps is None:
            return None
        more = min(laps + WIDER * period, MOST if self.system.at_most is None else self.system.at_most)
        return replace(self[laps], wider=self[more]) if more > laps else self[laps]


def judged_loops(system: LoopSystem, program: Program | None = None) -> LoopVerdict:
    """Decide. program: what the checker reads in the system's file; None: in the file that the system would write."""
    start, unrollings = perf_counter(), _Unrollings(system)
    try:
        laps, reason = system.period, ""
        program = program or Program(document_of(system).model_dump(mode="json"), {}, system.count)
        laps = program.period
    except (AmkError, Refused) as error:
        if system.at_most is None:
            raise
        laps, reason = 1, str(error)
    for periods in PERIODS:
        most = laps * (periods + 1) - 1
        if most > MOST:
            break
        bounded = system.at_most is not None and system.at_most <= most
        upto = system.at_most if bounded and system.at_most is not None else most
        unsafe = unrollings.first_unsafe(upto, laps)
        if unsafe is not None:
            return LoopVerdict(system, most, unsafe, None, perf_counter() - start)
        if bounded:
            proofs = () if program is None else (Proof(program, laps, ()),)
            return LoopVerdict(system, upto, None, None, perf_counter() - start, proofs)
        assert program is not None
        rests = _proved(program, laps, periods)
        if not isinstance(rests, str):
            return LoopVerdict(system, most, None, None, perf_counter() - start, (Proof(program, laps, rests),))
        reason = rests
    unproved = reason or f"the loop repeats after {laps} laps, too many to unroll"
    return LoopVerdict(system, max(unrollings.verdicts, default=0), None, unproved, perf_counter() - start)


def _proved(program: Program, laps: int, periods: int) -> tuple[Json, ...] | str:
    """Evidence for every rest that the checker accepts; else what it refuses."""
    found = []
    for rest in range(laps):
        reasons: list[str] = []
        for peeled in range(PEEL_CHOICES):
            try:
                evidence = attempt(program, laps, peeled, rest, periods - peeled)
                proved_from(program, laps, evidence)
            except (Refused, RuleRefused) as error:
                reasons.append(str(error))
                continue
            found.append(evidence)
            break
        else:
            return reasons[0]
    return tuple(found)
