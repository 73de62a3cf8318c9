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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Literal

from amk.report.diagnostic import AmkError, Diagnostic, Severity, Where, because
from amk.report.schema import json_pointer
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Schedule
from amk.validator.aliases import check_clashes
from amk.validator.compose import TOKENS, Composition, compose
from amk.validator.confirm import Evidence
from amk.validator.epochs import check_epochs, check_wrap
from amk.validator.evidence import explain
from amk.validator.flat_check import FlatCheck
from amk.validator.local_order import NotComposable
from amk.validator.memo import Memo, given
from amk.validator.memory_model import check_constants, check_said, check_scopes, check_strong, weak_orders
from amk.validator.model_graph import check_model_graph
from amk.validator.needs import check_needs
from amk.validator.one_token import one_token_follows
from amk.validator.order import ClocksTooLarge
from amk.validator.outside import check_outside
from amk.validator.owners import check_owners
from amk.validator.parts import without_sync
from amk.validator.position import position_obligations
from amk.validator.reduce import layer_loops, reduce_layers
from amk.validator.registers import check_registers
from amk.validator.resources import CompiledResources, check_resources
from amk.validator.rings import check_rings, ring_obligations
from amk.validator.smt import Obligation, Proof, Solver, prove
from amk.validator.structure import check_structure
from amk.validator.trace import TooLarge, last_items
from amk.validator.widths import check_widths
from amk.validator.words import check_tags

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
    evidence: Evidence | None = None
    proofs: tuple[Proof, ...] = ()

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
    memo: Memo | None = None,
) -> Verdict:
    """Decide. Raises AmkError (exit 2) if the schedule is not well-formed or a solver is missing; nothing else.

    memo: results of earlier checks; it changes the time this takes and nothing else.
    """
    if found := check_references(schedule):
        raise AmkError(found)
    with _no_collector():
        return _Verification(schedule, compiled, timeout_s, solver, memo or Memo()).run()


class Verifier:
    """`verify` for processes that look at many schedules that are alike; safe to share between threads."""

    def __init__(self) -> None:
        self.memo = Memo()
        self._one_at_a_time = Lock()

    def __call__(
        self,
        schedule: Schedule,
        *,
        compiled: CompiledResources | None = None,
        timeout_s: float | None = None,
        solver: Solver = "z3",
    ) -> Verdict:
        with self._one_at_a_time:
            return verify(schedule, compiled=compiled, timeout_s=timeout_s, solver=solver, memo=self.memo)


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


def _rings(memo: Memo, data: Schedule) -> list[Diagnostic]:
    return list(check_rings(data, memo))


def _tags(data: Schedule) -> list[Diagnostic]:
    return list(check_tags(data, [last_items(p, n) for n, p in enumerate(data.programs)]))


class _Undecided(Exception):
    """A solver's answer that another try may change; it is not kept."""


def _proof(name: str, code: str, script: str, timeout_ms: int, solver: Solver) -> Proof:
    (found,) = prove([Obligation(name, code, script)], timeout_ms, solver)
    if found.outcome == "unknown":
        raise _Undecided(found)
    return found


Check = Callable[..., list[Diagnostic]]
Looks = Literal["written", "data", "parts"]
STATIC: tuple[tuple[str, Check, Looks], ...] = (
    ("structure", check_structure, "written"),
    ("widths", check_widths, "written"),
    ("model graph", check_model_graph, "data"),
    ("registers", check_registers, "written"),
    ("rings", _rings, "parts"),
    ("owners", check_owners, "data"),
    ("tags", _tags, "data"),
    ("wrap", check_wrap, "written"),
    ("strong", check_strong, "written"),
    ("said", check_said, "written"),
)
"""Checks that look at the schedule as written, or at its data: without waits, signals and counters (those of `parts`
get a memo first). The resource, composed, epoch and SMT checks follow them.
"""


class _Verification:
    def __init__(
        self,
        schedule: Schedule,
        compiled: CompiledResources | None,
        timeout_s: float | None,
        solver: Solver,
        memo: Memo,
    ) -> None:
        self.memo = memo
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
        told = (*self.found, *self.open, *self.notes)
        return Verdict(status, told, self.stats, True, self.wrap, self.evidence, tuple(self.proofs))

    def _in_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise _Late

    def _static(self) -> None:
        data = given(without_sync(self.schedule))
        for _, check, looks in STATIC:
            self._in_time()
            if looks == "written":
                self._sort(check(self.schedule))
            else:
                self._sort((self.memo.within if looks == "parts" else self.memo)(check, data).value)
        self._sort(check_resources(self.schedule, self.compiled))

    def _needs(self) -> None:
        """Last, because what else is wrong, or open, mostly says more."""
        if not self.found and not self.open:
            self._sort(self.memo(check_needs, given(without_sync(self.schedule))).value)

    def _sort(self, diagnostics: list[Diagnostic]) -> None:
        for diagnostic in diagnostics:
            (self.open if diagnostic.code in UNDECIDED else self.found).append(diagnostic)

    def _composed(self) -> None:
        """The short schedule; the whole one if that is not SAFE and has several layer loops (see `reduce`)."""
        known = len(self.open)
        reduced = reduce_layers(self.schedule)
        self._judged(reduced)
        if reduced is not self.schedule and layer_loops(reduced) > 1 and (self.found or len(self.open) > known):
            del self.found[:], self.open[known:]
            self.evidence, self.notes = None, []
            self._judged(self.schedule)

    def _judged(self, reduced: Schedule) -> None:
        self._in_time()
        self.stats |= {"layers checked": reduced.model.layers, "workers": reduced.launch.workers}
        met: list[Diagnostic] = []
        try:
            result = compose(reduced, memo=self.memo)
            met = list(check_clashes(result.clashes))
            nodes = sum(g.count * g.nodes for g in result.groups)
            self.stats |= {"nodes": nodes, "incidences": result.incidences, "classes": result.classes}
            self._in_time()
            doubt = self._judge(result)
            if doubt is None and not self.found and not one_token_follows(result):
                # also if something is open: a launch of one token may be wrong whatever separates two
                doubt = self._judge(compose(reduced, 1, self.memo))
        except NotComposable as error:
            doubt = Diagnostic("AMK205", str(error), where=PROGRAMS)
        if doubt is not None:
            self._flat(reduced, doubt)
            # arrays of one step that meet are wrong whatever remains in doubt
            self.found += met if not self.found else []

    def _flat(self, reduced: Schedule, doubt: Diagnostic) -> None:
        """Event by event, position by position, until something is wrong; `doubt` stays if that is too much."""
        for tokens in (TOKENS, 1):
            flat = FlatCheck(reduced, tokens, self.memo)
            positions, complete = flat.positions()
            self.stats["positions checked"] = len(positions)
            known = len(self.open)
            for pos in positions:
                self._in_time()
                found = self._judge(flat.at(pos))
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
            self.found.append(Diagnostic("AMK103", message, where=Where(path=json_pointer(path))))
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
        finding = explain(result)
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

    def _proved(self, obligation: Obligation, timeout_ms: int) -> Proof:
        try:
            return self.memo(_proof, obligation.name, obligation.code, obligation.script, timeout_ms, self.solver).value
        except _Undecided as answer:
            (found,) = answer.args
            assert isinstance(found, Proof)
            return found

    def _obligations(self) -> None:
        if self.found:
            return
        self._in_time()
        left = 2.0 if self.deadline is None else max(0.05, self.deadline - time.monotonic())
        obligations = obligations_of(self.schedule)
        self.proofs = [self._proved(o, int(min(left, 2.0) * 1000)) for o in obligations]
        self.stats["obligations"] = len(obligations)
        for proof in self.proofs:
            if proof.outcome == "proved":
                continue
            refuted = proof.outcome == "refuted"
            message = f"{'false' if refuted else 'not decided'}: {proof.obligation.name}"
            where = Where(path="/streams" if proof.obligation.code in ("AMK514", "AMK515") else "/kv")
            diagnostic = Diagnostic(proof.obligation.code, message, where=where, facts=(because(proof.model),))
            (self.found if refuted else self.open).append(diagnostic)
