"""The verdict on a schedule.

Property: SAFE means that for every model position, any number of tokens per launch and every interleaving of all warps,
every step finishes, no two conflicting accesses are unordered, every byte read was written by the step that the model
intends, and everything fits the target. UNSAFE comes with a witness wherever an interleaving is what is wrong. UNKNOWN
says what could not be decided; it is never success.

Assumptions: the footprints of the ops (tested against their references), the lowering prints what the schedule says
(checked by reading the kernel back), cooperative launch, PTX memory model for the marked operations.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import TYPE_CHECKING, Final, Literal

from amk.report.diagnostic import AmkError, Diagnostic, Severity, Where, because
from amk.report.schema import finding
from amk.schedule_ir.launch_needs import unmet
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Schedule
from amk.validator.induction.layers import layer_loops, reduce_layers
from amk.validator.induction.tokens import check_epochs, check_wrap, one_follows, with_room
from amk.validator.memory.composition import TOKENS, Composition, compose
from amk.validator.memory.memory_model import check_constants, check_said, check_scopes, check_strong, weak_orders
from amk.validator.order.clocks import ClocksTooLarge
from amk.validator.order.two_levels import NotComposable
from amk.validator.program.footprint import Footprints, check_clashes
from amk.validator.program.handoffs import check_tags
from amk.validator.program.trace import TooLarge, last_items
from amk.validator.static.model_graph import check_model_graph
from amk.validator.static.obligations import (
    Obligation,
    Proof,
    Solver,
    check_rings,
    position_obligations,
    prove,
    ring_obligations,
)
from amk.validator.static.outside import check_outside
from amk.validator.static.owners import check_owners, check_registers
from amk.validator.static.resources import CompiledResources, check_resources, check_widths
from amk.validator.static.structure import check_structure

if TYPE_CHECKING:
    from amk.validator.evidence.confirm import Evidence
    from amk.validator.evidence.explanation import Finding

Status = Literal["SAFE", "UNSAFE", "UNKNOWN"]
OUTSIDE = frozenset(f"AMK{code}" for code in range(208, 215))
"""Synchronisation for which nothing else that is checked here holds."""
PROGRAMS = Where(path="/programs")
UNDECIDED = frozenset({"AMK507", "AMK514", "AMK515"})
"""Findings that leave the question open: policy, or side conditions that are sufficient but not necessary."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """status with its reasons. tokens_to_wrap: tokens until the first 32-bit counter or tag wraps (None if unknown)."""

    status: Status
    diagnostics: tuple[Diagnostic, ...]
    stats: dict[str, float | int] = field(default_factory=dict)
    deterministic: bool = True
    tokens_to_wrap: int | None = None
    evidence: Evidence | None = field(default=None, repr=False)
    proofs: tuple[Proof, ...] = field(default=(), repr=False)

    @property
    def safe(self) -> bool:
        return self.status == "SAFE"


class _Late(Exception):
    """The time limit has passed."""


def obligations_of(schedule: Schedule) -> list[Obligation]:
    """Everything that a solver has to prove."""
    return [*position_obligations(schedule), *ring_obligations()]


def verify(
    schedule: Schedule,
    *,
    compiled: CompiledResources | None = None,
    timeout_s: float | None = None,
    solver: Solver = "z3",
) -> Verdict:
    """Decide. Raises AmkError (exit 2) if the schedule is not well-formed or a solver is missing; nothing else."""
    if found := check_references(schedule):
        raise AmkError(found)
    with _no_collector():
        return _Verification(schedule, compiled, timeout_s, solver).run()


@contextmanager
def _no_collector() -> Iterator[None]:
    """Many small objects are made and few die: the cyclic collector only costs time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


MOST_NEEDS: Final = 8
"""Unmet preconditions that are told."""


def check_needs(schedule: Schedule) -> list[Diagnostic]:
    """AMK407 for each precondition of an op's definition that does not hold at one of its steps, and for what the host
    or the packed weights lack (`launch_needs`). Nothing of it depends on who runs when."""
    return [
        finding("AMK407", f"a launch requires that {message}", path, f"need {need}")
        for path, need, message in islice(unmet(schedule), MOST_NEEDS)
    ]


def _tags(schedule: Schedule) -> Iterable[Diagnostic]:
    return check_tags(schedule, [last_items(p, n) for n, p in enumerate(schedule.programs)])


def _sequences(schedule: Schedule) -> Iterable[Diagnostic]:
    if not schedule.live:
        return ()
    from amk.validator.static.sequences import check_sequences  # most schedules have one position

    return check_sequences(schedule)


STATIC: Final[tuple[Callable[[Schedule], Iterable[Diagnostic]], ...]] = (
    check_structure, check_widths, check_model_graph, check_registers, check_rings, check_owners, _tags, check_wrap,
    check_strong, check_said,
)  # fmt: skip
"""Checks of the schedule as written. The resource, composed, epoch and SMT checks follow them."""


def _explained(result: Composition, in_time: Callable[[], None]) -> Finding | None:
    from amk.validator.evidence.explanation import explain  # most schedules are SAFE

    return explain(result, in_time)


class _Verification:
    def __init__(
        self,
        schedule: Schedule,
        compiled: CompiledResources | None,
        timeout_s: float | None,
        solver: Solver,
    ) -> None:
        self.schedule, self.compiled, self.solver = schedule, compiled, solver
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.found: list[Diagnostic] = []
        self.open: list[Diagnostic] = []
        self.notes: list[Diagnostic] = []
        self.stats: dict[str, float | int] = {}
        self.evidence: Evidence | None = None
        self.wrap: int | None = None
        self.proofs: list[Proof] = []

    def run(self) -> Verdict:
        started = time.monotonic()
        try:
            self.open += check_outside(self.schedule)
            if not self.open:
                self._static()
            if not self.found and not (self.open and self.open[0].code in OUTSIDE):
                self._composed()
                self._needs()
                self._obligations()
        except (TooLarge, ClocksTooLarge, NotComposable) as error:
            reason = because("larger than the check is willing to enumerate, or outside the class it decides")
            self.open.append(Diagnostic("AMK205", str(error), where=PROGRAMS, facts=(reason,)))
        except _Late:
            self.open.append(
                Diagnostic("AMK205", "the time limit passed before the check was complete", where=PROGRAMS)
            )
        self.stats["seconds"] = round(time.monotonic() - started, 3)
        status: Status = "UNSAFE" if self.found else "UNKNOWN" if self.open else "SAFE"
        diagnostics = (*self.found, *self.open, *self.notes)
        return Verdict(status, diagnostics, self.stats, True, self.wrap, self.evidence, tuple(self.proofs))

    def _in_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise _Late

    def _static(self) -> None:
        for check in STATIC:
            self._in_time()
            self._sort(check(self.schedule))
        if not self.found:  # it asks for accesses at every position, which buffers of another shape cannot answer
            self._sort(_sequences(self.schedule))
        self._sort(check_resources(self.schedule, self.compiled))

    def _needs(self) -> None:
        """Last, because what else is wrong, or open, mostly says more."""
        if not self.found and not self.open:
            self._sort(check_needs(self.schedule))

    def _sort(self, diagnostics: Iterable[Diagnostic]) -> None:
        for diagnostic in diagnostics:
            (self.open if diagnostic.code in UNDECIDED else self.found).append(diagnostic)

    def _composed(self) -> None:
        """The short schedule; the whole one if that is not SAFE and has several layer loops: see `layers`."""
        known = len(self.open)
        whole = with_room(self.schedule)
        reduced = reduce_layers(whole)
        self._judged(reduced)
        if reduced is not whole and layer_loops(reduced) > 1 and (self.found or len(self.open) > known):
            del self.found[:], self.open[known:]
            self.evidence, self.notes = None, []
            self._judged(whole)
        if whole is not self.schedule and self.evidence is not None and self.evidence.kind != "deadlock":
            self._alone(reduced if layer_loops(reduced) == 1 else whole)

    def _alone(self, schedule: Schedule) -> None:
        """Launches of one token are judged as ones of two. What is wrong there is open, unless it is in one as well:
        between two launches everything is in order. Who waits for ever does so behind a launch, too."""
        beyond, self.found, self.evidence = self.found, [], None
        try:
            doubt = self._judge(compose(schedule, 1))
        except NotComposable as error:
            doubt = Diagnostic("AMK205", str(error), where=PROGRAMS)
        if not self.found:
            reason = because("launches have one token, and are proved as ones of two, which would be wrong")
            self.open += [replace(d, code="AMK205", facts=(*d.facts, reason)) for d in beyond[:1] if doubt is None]
            self.open += [doubt] if doubt is not None else []

    def _judged(self, reduced: Schedule) -> None:
        self._in_time()
        self.stats |= {"layers checked": reduced.model.layers, "workers": reduced.launch.workers}
        met: list[Diagnostic] = []
        try:
            footprints = Footprints(reduced, folded=True)
            result = compose(reduced, footprints=footprints)
            met = list(check_clashes(result.clashes))
            nodes = sum(g.count * g.nodes for g in result.groups)
            self.stats |= {"nodes": nodes, "incidences": result.incidences, "classes": result.classes}
            self._in_time()
            doubt = self._judge(result)
            if doubt is None and not self.found and (self.open or not one_follows(result)):
                # also if something is open: a launch of one token may be wrong whatever separates two
                doubt = self._judge(compose(reduced, 1, footprints))
        except NotComposable as error:
            doubt = Diagnostic("AMK205", str(error), where=PROGRAMS)
        if doubt is not None:
            self._flat(reduced, doubt)
            # arrays of one step that meet are wrong whatever remains in doubt
            self.found += met if not self.found else []

    def _flat(self, reduced: Schedule, doubt: Diagnostic) -> None:
        """Event by event, position by position, until something is wrong; `doubt` stays if that is too much."""
        from amk.validator.evidence.flat_check import FlatCheck  # most schedules can be composed

        for tokens in (TOKENS, 1):
            flat = FlatCheck(reduced, tokens)
            positions, complete = flat.positions()
            self.stats["positions checked"] = len(positions)
            known = len(self.open)
            for pos, advance in product(positions, flat.advances):
                self._in_time()
                found = self._judge(flat.at(pos, advance))
                self.open += [found] if found is not None else []
                if self.found:
                    return
                if len(self.open) > known:
                    break
            if not complete and len(self.open) == known:
                more = because(f"too large to be checked at every position; nothing was found at {len(positions)}")
                self.open.append(replace(doubt, facts=(*doubt.facts, more)))
                return

    def _judge(self, result: Composition) -> Diagnostic | None:
        """Findings of one composition and, without any, what carries it from two tokens to all.

        Returns what it finds without evidence: that is only a doubt.
        """
        for path, message in result.outside.items():
            self.found.append(finding("AMK103", message, path))
        self.found += check_constants(self.schedule, result.written_constants)
        self.found += check_scopes(self.schedule, result.groups, result.instances)
        if self.found or (doubt := self._findings(result)) is not None:
            return None if self.found else doubt
        self.found += check_clashes(result.clashes)
        if not self.found and result.order is not None and result.tokens == TOKENS:
            epochs = check_epochs(result)
            self.found += epochs.wrong
            self.open += [d for d in epochs.open if d not in self.open]
            self.wrap = epochs.wrap
        return None

    def _findings(self, result: Composition) -> Diagnostic | None:
        """What explains the finding best comes first: a relaxed operation, if one is why, or a missing barrier."""
        weak = list(weak_orders(self.schedule))
        finding = None if result.safe else _explained(result, self._in_time)
        if finding is None:
            self.notes = weak
            return None
        if finding.evidence is None and finding.diagnostic.code not in ("AMK202", "AMK513"):
            return finding.diagnostic
        self.evidence = finding.evidence
        if weak and finding.diagnostic.code.startswith("AMK3"):
            self.found += [Diagnostic(d.code, d.message, Severity.ERROR, d.where, d.facts) for d in weak]
        elif finding.cause is not None:
            self.found.append(finding.cause)
        self.found.append(finding.diagnostic)
        return None

    def _obligations(self) -> None:
        if self.found:
            return
        self._in_time()
        left = 2.0 if self.deadline is None else max(0.05, self.deadline - time.monotonic())
        obligations = obligations_of(self.schedule)
        self.proofs = prove(obligations, int(min(left, 2.0) * 1000), self.solver)
        self.stats["obligations"] = len(obligations)
        for proof in self.proofs:
            if proof.outcome == "proved":
                continue
            refuted = proof.outcome == "refuted"
            message = f"{'false' if refuted else 'not decided'}: {proof.obligation.name}"
            where = Where(path="/streams" if proof.obligation.code in ("AMK514", "AMK515") else "/kv")
            diagnostic = Diagnostic(proof.obligation.code, message, where=where, facts=(because(proof.model),))
            (self.found if refuted else self.open).append(diagnostic)
