"""A design looked at without an evaluation: verdict with its witness in words, simulated time, compiled resources.

It is judged in a process of its own that runs nothing on a device, has a deadline and no keys, and dies with whoever
asked. Nothing of it is written down: what may be measured is decided by the gate, which judges again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from amk.agent.gate.candidate import Candidate, Workshop
from amk.agent.gate.design import Design, edit_of, read_edits
from amk.agent.gate.isolation import die_with, first_to_be_killed
from amk.agent.journal.events import RunStarted
from amk.processes import python_module, worker_environment
from amk.report.diagnostic import TITLES, AmkError, explanation, printable
from amk.report.render import render
from amk.schedule_ir.edits.apply import edit_text
from amk.schedule_ir.edits.kinds import Edit
from amk.schedule_ir.edits.shrink import shrunk
from amk.simulator.predict import Simulator

SECONDS: Final = 240.0
VERDICT_SECONDS: Final = 120.0
MATTERS_SECONDS: Final = 20.0
"""Of the processor, for finding which edits matter."""
TEXT: Final = 4000
PROCESS: Final = python_module("amk.agent.tools.trial")


class DesignRequest(BaseModel):
    """What is to be looked at: a design of the run. compile: also with the compiler, which takes some seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: RunStarted
    settings: dict[str, int | float | bool | str | None]
    edits: tuple[str, ...]
    compile: bool


class Trial(BaseModel):
    """verdict: SAFE, UNSAFE, UNKNOWN, or IMPOSSIBLE where there is no such schedule. told: the diagnostics in full,
    with the witness. explained: what the first code means and what helps. repaired: what was mended after the edits.
    matters: of several edits those without which the first code would not be there. simulated_ms: at each position of
    the run; empty where nobody may ask the simulator, or it cannot tell. registers to
    spilled_bytes: of the compiled kernel; refused: why it may not run with them. All but the verdict may be absent."""

    model_config = ConfigDict(extra="forbid")

    verdict: str
    codes: list[str] = []
    told: str = ""
    explained: str = ""
    repaired: list[str] = []
    matters: list[str] = []
    key: str = ""
    simulated_ms: list[float] = []
    registers: int | None = None
    shared_bytes: int | None = None
    spilled_bytes: int | None = None
    refused: str = ""


Look = Callable[[DesignRequest], Trial]


def look(request: DesignRequest) -> Trial:
    """`looked_at` in a process of its own; UNKNOWN with AMK709 if it ends or is late."""
    try:
        done = subprocess.run(
            [*PROCESS, str(os.getpid())], input=request.model_dump_json().encode(), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=SECONDS, env=worker_environment(os.environ), start_new_session=True,
            check=False,
        )  # fmt: skip
        return Trial.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        return Trial(verdict="UNKNOWN", codes=["AMK709"], told=f"it took longer than {SECONDS:g} s")
    except (OSError, ValidationError) as error:
        why = type(error).__name__ if isinstance(error, OSError) else "the process that looked at it ended"
        return Trial(verdict="UNKNOWN", codes=["AMK709"], told=why)


def looked_at(request: DesignRequest, workshop: Workshop) -> Trial:
    """The design, judged in this process."""
    try:
        settings = workshop.space(request.run.start).parse(request.settings)
        candidate = workshop.make(Design(settings, read_edits([json.loads(text) for text in request.edits])))
    except ValueError as error:
        return Trial(verdict="IMPOSSIBLE", told=printable(str(error), TEXT))
    if not isinstance(candidate, Candidate):
        found = Trial(verdict="IMPOSSIBLE", codes=list(candidate.codes), told=printable(candidate.detail, TEXT),
                      explained=_explained(candidate.codes))  # fmt: skip
        return found.model_copy(update={"matters": _matters(found, request, workshop)})
    found = Trial(verdict="UNKNOWN", repaired=list(candidate.repaired[:20]), key=candidate.key)
    _verdict(found, candidate)
    found.matters = _matters(found, request, workshop)
    if request.run.prior:
        _simulated(found, workshop.simulator, candidate, request.run.positions)
    if request.compile and found.verdict == "SAFE":
        _compiled(found, candidate)
    return found


def _verdict(trial: Trial, candidate: Candidate) -> None:
    from amk.validator.verify import verify

    try:
        verdict = verify(candidate.schedule, timeout_s=VERDICT_SECONDS)
    except AmkError as error:
        diagnostics, trial.verdict = error.diagnostics, "IMPOSSIBLE"
    else:
        diagnostics = verdict.diagnostics
        trial.verdict = verdict.status if verdict.deterministic or not verdict.safe else "UNKNOWN"
    trial.codes = list(dict.fromkeys(d.code for d in diagnostics))[:8]
    trial.told = "\n".join(printable(line) for line in render(diagnostics[:3]).splitlines())[:TEXT]
    trial.explained = _explained(trial.codes)


def _matters(trial: Trial, request: DesignRequest, workshop: Workshop) -> list[str]:
    """A part of the edits that is refused with the same first code, and none of which can be left out; more of them
    where looking took too long."""
    edits = tuple(map(edit_of, request.edits))
    if trial.verdict == "SAFE" or not trial.codes or len(edits) < 2:
        return []
    settings, until = workshop.space(request.run.start).parse(request.settings), time.process_time() + MATTERS_SECONDS

    def refused_so(part: Sequence[Edit]) -> bool:
        if time.process_time() > until:
            return False
        candidate, again = workshop.make(Design.of(settings, part)), Trial(verdict="UNKNOWN")
        if isinstance(candidate, Candidate):
            _verdict(again, candidate)
        else:
            again.codes = list(candidate.codes)
        return again.codes[:1] == trial.codes[:1]

    try:
        return [edit_text(edit) for edit in shrunk(edits, refused_so)]
    except ValueError:  # it took too long at once
        return []


def _explained(codes: Sequence[str]) -> str:
    return explanation(codes[0])[:TEXT] if codes and codes[0] in TITLES else ""


def _simulated(trial: Trial, simulator: Simulator, candidate: Candidate, positions: tuple[int, ...]) -> None:
    try:
        trial.simulated_ms = [round(simulator.step_ms(candidate.schedule, pos), 5) for pos in positions]
    except AmkError as error:
        trial.told += printable(f"\nsimulated: {error.diagnostics[0].message}", 300)


def _compiled(trial: Trial, candidate: Candidate) -> None:
    from amk.lowering.kernel import build

    try:
        built = build(candidate.schedule)
    except AmkError as error:
        trial.refused = printable(f"{error.diagnostics[0].code}: {error.diagnostics[0].message}", TEXT)
        return
    used = built.resources
    trial.registers, trial.shared_bytes = used.registers, built.shared_bytes
    trial.spilled_bytes = used.spill_stores + used.spill_loads


def main(parent: int) -> None:
    """One `Asked` on standard input, one `Trial` on standard output."""
    die_with(parent)
    first_to_be_killed()
    os.nice(5)
    output, sys.stdout = sys.stdout, sys.stderr
    asked = DesignRequest.model_validate_json(sys.stdin.buffer.read())
    from amk.agent.gate.candidate import workshop_of

    output.write(looked_at(asked, workshop_of(asked.run)).model_dump_json())


if __name__ == "__main__":
    main(int(sys.argv[1]))
