"""`amk export RUN -o FILE`: the best schedule of a search, certified again before it is written; its certificate."""

import argparse
import json
from pathlib import Path

from amk.agent.certify import installed
from amk.agent.journal import read_state
from amk.agent.runs import find, write_whole
from amk.agent.session import candidate_of
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.codec import canonical_json
from amk.validator.export.of_schedule import evidence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="name of a run, or the start of it")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write, such as best.schedule.json")


def run(arguments: argparse.Namespace) -> int:
    state = read_state(find(arguments.run))
    if state.run is None:
        raise AmkError(Diagnostic("AMK701", f"run {arguments.run} was never started"))
    best = candidate_of(state, state.best)
    if best is None or (state.best >= 0 and state.trials[state.best].key != best.key):
        message = "the planner of this version no longer makes the schedule of the run"
        raise AmkError(Diagnostic("AMK703", message, help="install the version that made the run"))
    judgement = installed()(best.schedule)
    if judgement.outcome != "SAFE":
        code = judgement.codes[0] if judgement.codes else "AMK901"
        exit_code = Exit.UNSAFE if judgement.outcome == "UNSAFE" else Exit.UNKNOWN
        raise AmkError(Diagnostic(code, f"the schedule is not certified: {judgement.detail}"), exit_code)
    certificate = arguments.output.with_suffix(".certificate.json")
    write_whole(certificate, json.dumps(evidence(best.schedule)))
    if judgement.certificate:
        write_whole(arguments.output.with_suffix(".verdict.json"), judgement.certificate)
    write_whole(arguments.output, canonical_json(best.schedule).decode("ascii"))
    print(arguments.output)
    print(f"check: amk check-certificate {arguments.output} {certificate}")
    return 0
