"""From a proposal to a candidate that may run: within the space, new, certified, compiled, within resources.

Property: `Gate.judge` returns a `Ready` only for a schedule judged SAFE whose kernel compiled within the registers that
co-residency allows and without spills, and, where it is going to run, whose certificate the checker accepts.
Everything else ends in a `Gated` event with its reason codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol

from amk.agent.gate.admitting import packed
from amk.agent.gate.candidate import Candidate, Impossible, Workshop
from amk.agent.gate.certify import Certifier, Judgement
from amk.agent.gate.design import Design
from amk.agent.journal.events import Gated
from amk.lowering.kernel import build
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.schedule import Schedule
from amk.simulator.predict import Prediction, Simulator

DETAIL = 1000
VERDICT = -3
"""Index of a candidate that is no proposal: the validator alone is asked about it."""
LOOKED_AT = 128


@dataclass(frozen=True)
class Ready:
    """A candidate that may be run. `kernel`, admitted and packed, is empty where nothing is going to run it."""

    candidate: Candidate
    kernel: bytes
    judgement: Judgement


Judged = tuple[Gated, Ready | None]


class Compiler(Protocol):
    """Candidate -> cubin; AmkError if it does not compile or exceeds its resources."""

    def __call__(self, candidate: Candidate) -> bytes: ...


def compile_checked(candidate: Candidate) -> bytes:
    """The cubin, if its registers let every worker be resident, nothing is spilled and it synchronises as planned."""
    return build(candidate.schedule).compiled.cubin


def not_compiled(candidate: Candidate) -> bytes:
    """For a back end that runs nothing."""
    return b""


@dataclass
class Gate:
    """Judges in this process, one candidate after the other.

    ahead: proposals that wait for a device at once, one more for each further device. patience: evaluations that bring
    nothing better, after which the best that passed its pilot is tested. glance: who is asked about candidates that are
    no proposals, if not `certify`.
    """

    workshop: Workshop
    certify: Certifier
    compile: Compiler = compile_checked
    ahead: int = 1
    patience: int = 0
    runs: bool = True
    glance: Certifier | None = None
    _safe: dict[str, bool] = field(default_factory=dict)

    @property
    def immediate(self) -> bool:
        """Whether `submit` returns what is already judged."""
        return True

    def look(self, index: int, design: Design | Settings, indices: Mapping[str, int]) -> Gated | Candidate:
        """What can be told without judging. `indices`: program key -> index of the proposal that had it first."""
        candidate = self.workshop.make(design)
        if isinstance(candidate, Impossible):
            return Gated(index=index, verdict="impossible", codes=candidate.codes, detail=candidate.detail[:DETAIL])
        first = indices.get(candidate.key)
        if first is not None and first != index:
            what = "the start schedule" if first < 0 else f"proposal {first}"
            return Gated(index=index, verdict="duplicate", key=candidate.key, detail=f"lowers to the kernel of {what}")
        return candidate

    def admit(self, index: int, design: Design | Settings, indices: Mapping[str, int]) -> Judged:
        looked = self.look(index, design, indices)
        return (looked, None) if isinstance(looked, Gated) else self.judge(index, looked)

    def begin(self, index: int, design: Design | Settings) -> Future[Judged]:
        """The judgement of what a session starts from. AMK011 if it can no longer be planned."""
        candidate = self.workshop.make(design)
        if isinstance(candidate, Impossible):
            raise AmkError(Diagnostic("AMK011", f"the schedule to start from cannot be planned: {candidate.detail}"))
        return self.submit(index, candidate)

    def certain(self, judged: Future[Judged]) -> Ready:
        """What ran an hour ago still has to pass today: AmkError, with the gate's reason, if it does not."""
        gated, ready = judged.result()
        if ready is None:
            code = gated.codes[0] if gated.codes else "AMK901"
            message = f"the schedule to start from is refused ({gated.verdict}): {gated.detail}"
            raise AmkError(Diagnostic(code, message), Exit.UNSAFE if gated.verdict == "unsafe" else Exit.UNKNOWN)
        return ready

    def is_safe(self, candidate: Candidate) -> bool:
        """Whether the verdict is SAFE, waited for, once for every candidate."""
        if candidate.key not in self._safe:
            self._safe[candidate.key] = self.submit(VERDICT, candidate).result()[1] is not None
        return self._safe[candidate.key]

    def submit(self, index: int, candidate: Candidate) -> Future[Judged]:
        """The judgement, now or later."""
        judged: Future[Judged] = Future()
        judged.set_result(self.judge(index, candidate))
        return judged

    def close(self) -> None:
        """Nothing is held."""

    def judge(self, index: int, candidate: Candidate) -> Judged:
        """Validator and compiler work side by side, so that the device waits for the slower one only."""
        if index == VERDICT:
            return self._verdict(candidate)
        with ThreadPoolExecutor(1) as beside:
            compiled = beside.submit(self.compile, candidate)
            judgement = self.certify(candidate.schedule)
            return self._join(index, candidate, judgement, compiled)

    def _verdict(self, candidate: Candidate) -> Judged:
        found = (self.glance or self.certify)(candidate.schedule)
        ready = Ready(candidate, b"", found) if found.outcome == "SAFE" else None
        verdict: Literal["passed", "unknown"] = "unknown" if ready is None else "passed"
        return Gated(index=VERDICT, verdict=verdict, key=candidate.key, codes=found.codes), ready

    def _join(self, index: int, candidate: Candidate, judgement: Judgement, compiled: Future[bytes]) -> Judged:
        def refused(verdict: Literal["unsafe", "unknown", "uncompilable"], codes: tuple[str, ...], why: str) -> Judged:
            return Gated(index=index, verdict=verdict, key=candidate.key, codes=codes, detail=why[:DETAIL]), None

        if judgement.outcome != "SAFE":
            return refused("unsafe" if judgement.outcome == "UNSAFE" else "unknown", judgement.codes, judgement.detail)
        try:
            cubin = compiled.result()
        except AmkError as error:
            return refused("uncompilable", tuple(d.code for d in error.diagnostics), error.diagnostics[0].message)
        try:
            kernel = packed(candidate.schedule, cubin) if cubin and self.runs else b""
        except AmkError as error:
            return refused("unknown", tuple(d.code for d in error.diagnostics), error.diagnostics[0].message)
        try:
            kernel_key = candidate.kernel_key()
        except AmkError as error:
            return refused("uncompilable", tuple(d.code for d in error.diagnostics), error.diagnostics[0].message)
        foretold = simulated(self.workshop.simulator, candidate.schedule) if kernel else None
        passed = Gated(
            index=index, verdict="passed", key=candidate.key, kernel=kernel_key, repaired=candidate.repaired[:20],
            simulated_ms=foretold.ms if foretold else None, bottleneck=foretold.bottleneck if foretold else "",
        )  # fmt: skip
        return passed, Ready(candidate, kernel, judgement)


def simulated(simulator: Simulator, schedule: Schedule) -> Prediction | None:
    """A token at position LOOKED_AT, or the last before it; None where the simulator cannot tell."""
    try:
        return simulator.predict(schedule, min(LOOKED_AT, schedule.kv.context - 1))
    except AmkError:
        return None
