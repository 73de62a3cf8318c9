"""The verdict on a flat system, with what is wrong in the system's own names.

Property: SAFE iff

1. every counter's scope reaches all who use it;
2. on `block` every interleaving executes every event;
3. on `word` (hence on `block`) no two conflicting events are ever enabled together, and every byte read or required at
   the end holds what it should;
4. where a file gives `fence`, whoever touches plain memory after a write of it is behind that write there.

UNKNOWN (AMK205) where clocks do not fit in memory, and for a race of `word` that no run of `block` confirms
(`happens_before.py`). Cost: one or two judgements of the validator (`flat.py`), linear in events times waiting agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, Final, Literal

from amk.report.diagnostic import Diagnostic
from amk.report.render import render
from amk.systems.advice import advised
from amk.systems.finding import Finding, deadlock_finding, found_in, too_narrow_scopes, unfenced
from amk.systems.flat_judge import (
    ClocksTooLarge,
    Judgement,
    greedy,
    judge,
)
from amk.systems.flat_system import FlatSystem
from amk.systems.rules_verdict import judged_rules

Status = Literal["SAFE", "UNSAFE", "UNKNOWN"]
EVIDENCE: Final = "amk.evidence/1"
UNDECIDED: Final = frozenset(("AMK205", "AMK514", "AMK515"))


@dataclass(frozen=True, eq=False)
class Verdict:
    """`safe`, `verdict`, `explain()`; `finding` is the first thing wrong."""

    system: FlatSystem
    finding: Finding | None
    judgement: Judgement | None
    seconds: float
    wider: Verdict | None = None
    """Of the same kernel with more laps, where changes are tried on that."""

    @property
    def verdict(self) -> Status:
        if self.finding is None:
            return "SAFE"
        return "UNKNOWN" if self.finding.diagnostic.code in UNDECIDED else "UNSAFE"

    @property
    def safe(self) -> bool:
        return self.finding is None

    @property
    def deterministic(self) -> bool:
        """Every float sum has one order."""
        return self.safe and self.judgement is not None and self.judgement.races.deterministic

    @cached_property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What is wrong and what to change; changes are tried first, so this may take a second."""
        if self.finding is None:
            return ()
        more = self.wider
        wider = None if more is None or more.finding is None else (more.system, more.finding)
        return (advised(self.system, self.finding, lambda changed: judged(changed).safe, wider),)

    def explain(self) -> str:
        """The verdict as text for people."""
        block = self.system.block
        size = f"{self.system.name}: {block.agents} agents, {block.events:,} events"
        return f"{self.verdict}  {size}\n{render(self.diagnostics)}".rstrip()

    def __repr__(self) -> str:
        return f"<{self.explain()}>"

    @property
    def witness_kind(self) -> str | None:
        """What the witness shows; None if there is none."""
        if self.finding is None:
            return None
        if self.finding.run is not None:
            return self.finding.run[0].kind
        return None if self.finding.witness is None else self.finding.witness.kind

    def witness_json(self) -> dict[str, Any] | None:
        """What `amk replay` reads; None if no run shows what is wrong."""
        found = self.finding
        if found is not None and found.run is not None:
            from amk.systems.run_witness import run_json

            return run_json(self.system, *found.run)
        if found is None or found.witness is None or found.system is None:
            return None
        return {"format": EVIDENCE, "system": found.system.to_json(), "witness": found.witness.to_json()}


def judged(system: FlatSystem) -> Verdict:
    """Decide."""
    start = perf_counter()
    finding, judgement = next(too_narrow_scopes(system), None), None
    if finding is None:
        finding, judgement = _by_counters(system) if system.rules is None else judged_rules(system)
    return Verdict(system, finding, judgement, perf_counter() - start)


def _by_counters(system: FlatSystem) -> tuple[Finding | None, Judgement | None]:
    """What is wrong with a system of plain counters, and the last judgement of it."""
    finding, judgement = None, None
    try:
        if system.edge_systems is None:
            judgement = judge(system.block)
            finding = found_in(system, system.block, judgement)
        else:
            finding = deadlock_finding(system, greedy(system.block))
        if finding is None and system.word is not system.block:
            judgement = judge(system.word)
            finding = found_in(system, system.word, judgement)
        if finding is None and system.edge_systems is not None and judgement is not None:
            finding = unfenced(system, system.edge_systems, judgement.run)
    except ClocksTooLarge as error:
        finding = Finding(Diagnostic("AMK205", str(error)))
    return finding, judgement
