"""The best schedule of a run as files, certified again before they are written; what it found, for other runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from amk.agent.gate.certify import installed
from amk.agent.journal.inbox import write_whole
from amk.agent.journal.state import State
from amk.agent.propose.transfer import learned, write
from amk.agent.run.reports import candidate_of, workshop_of
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.codec import canonical_json
from amk.validator.export.of_schedule import evidence

BEST: Final = "best.schedule.json"


def export(state: State, output: Path) -> tuple[Path, Path]:
    """Write the schedule, its certificate and the record of its verdict; returns the first two.

    AMK703 if this version no longer makes the schedule; the verdict's code if it is not SAFE.
    """
    best = candidate_of(state, state.best)
    if best is None or (state.best >= 0 and state.trials[state.best].key != best.key):
        message = "the planner of this version no longer makes the schedule of the run"
        raise AmkError(Diagnostic("AMK703", message, help="install the version that made the run"))
    judgement = installed()(best.schedule)
    if judgement.outcome != "SAFE":
        code = judgement.codes[0] if judgement.codes else "AMK901"
        exit_code = Exit.UNSAFE if judgement.outcome == "UNSAFE" else Exit.UNKNOWN
        raise AmkError(Diagnostic(code, f"the schedule is not certified: {judgement.detail}"), exit_code)
    certificate = output.with_suffix(".certificate.json")
    write_whole(certificate, json.dumps(evidence(best.schedule)))
    if judgement.certificate:
        write_whole(output.with_suffix(".verdict.json"), judgement.certificate)
    write_whole(output, canonical_json(best.schedule).decode("ascii"))
    return output, certificate


def export_lessons(state: State, output: Path) -> int:
    """Write what paid in the run, for `amk autoresearch --transfer`; how many lessons there are."""
    assert state.run is not None
    found = learned(state, workshop_of(state).space(state.run.start))
    write(output, found)
    return len(found.lessons)
