"""`amk verify`: is this schedule safe for every interleaving, position and number of tokens."""

import argparse
import json
from pathlib import Path
from typing import Any

from amk.commands.output import add_format, print_json
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where, because
from amk.report.render import as_json
from amk.schedule_ir.codec import load_schedule, located, schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import Verdict, verify

EXITS = {"SAFE": Exit.SAFE, "UNSAFE": Exit.UNSAFE, "UNKNOWN": Exit.UNKNOWN}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", type=Path, help="schedule file, as `amk plan` writes it")
    parser.add_argument(
        "--witness", type=Path, metavar="FILE", help="write the witness of an UNSAFE verdict, for `amk replay`"
    )
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="write the evidence for SAFE, for `amk check-certificate`"
    )
    parser.add_argument("--emit-system", type=Path, metavar="FILE", help="write the flat system (small schedules)")
    parser.add_argument("--pos", type=int, default=0, help="first position of --emit-system (default: 0)")
    parser.add_argument("--tokens", type=int, default=2, help="tokens of --emit-system (default: 2)")
    parser.add_argument("--emit-smt", type=Path, metavar="DIR", help="write every proof obligation as SMT-LIB")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="answer UNKNOWN after this time")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    schedule, positions = load_schedule(arguments.schedule)
    if arguments.emit_system:
        _emit_system(arguments, schedule)
    verdict = verify(schedule, timeout_s=arguments.timeout)
    if arguments.witness and verdict.evidence is not None:
        _write(arguments.witness, json.dumps(verdict.evidence.to_json(schedule_hash(schedule))))
    if arguments.certificate and verdict.safe:
        _write(arguments.certificate, _certificate(schedule))
    if arguments.emit_smt:
        _emit_smt(arguments.emit_smt, verdict)
    told = [located(d, str(arguments.schedule), positions) for d in verdict.diagnostics]
    if arguments.format == "json":
        print_json(_summary(schedule, verdict) | {"diagnostics": [as_json(d) for d in told]})
    else:
        _print_text(arguments, schedule, verdict, told)
    return int(EXITS[verdict.status])


def _summary(schedule: Schedule, verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.status,
        "schedule": schedule_hash(schedule),
        "model": schedule.model.name,
        "target": schedule.target.name,
        "deterministic": verdict.deterministic,
        "tokens_to_wrap": verdict.tokens_to_wrap,
        "witness": None if verdict.evidence is None else verdict.evidence.witness.kind,
        "stats": verdict.stats,
        "proofs": [{"name": p.obligation.name, "outcome": p.outcome} for p in verdict.proofs],
    }


def _print_text(arguments: argparse.Namespace, schedule: Schedule, verdict: Verdict, told: list[Diagnostic]) -> None:
    arguments.findings.tell(told)
    stats = verdict.stats
    print(f"{verdict.status}  {schedule.model.name} on {schedule.target.name}, {schedule.launch.workers} workers")
    if verdict.safe:
        print("  any interleaving, any number of tokens, every position below", f"{schedule.kv.context:,}")
        print(f"  deterministic: yes   tokens until a counter wraps: {verdict.tokens_to_wrap:,}")
        print(f"  {stats['nodes']:,} nodes, {stats['obligations']} obligations proved, {stats['seconds']:.2f} s")
    elif verdict.evidence is not None:
        told_where = f"written to {arguments.witness}" if arguments.witness else "not written; use --witness FILE"
        print(f"  witness ({verdict.evidence.witness.kind}) {told_where}")


def _emit_system(arguments: argparse.Namespace, schedule: Schedule) -> None:
    from amk.validator.expand import expand
    from amk.validator.trace import TooLarge

    last = schedule.kv.context - arguments.tokens
    if arguments.tokens < 1 or not 0 <= arguments.pos <= last:
        message = f"--pos {arguments.pos} with --tokens {arguments.tokens} leaves the context of {schedule.kv.context}"
        raise AmkError(Diagnostic("AMK005", message))
    try:
        flat = expand(schedule, arguments.pos, arguments.tokens)
    except TooLarge as error:
        raise AmkError(Diagnostic("AMK002", str(error))) from error
    head = {"schedule": schedule_hash(schedule), "pos": arguments.pos, "tokens": arguments.tokens}
    _write(arguments.emit_system, json.dumps(head | {"system": flat.system.to_json()}))


def _certificate(schedule: Schedule) -> str:
    from amk.validator.certificate import NotSafe
    from amk.validator.schedule_certificate import certify_schedule

    try:
        return json.dumps(certify_schedule(schedule), separators=(",", ":"))
    except NotSafe as error:
        reason = because("the verdict is SAFE, but not in a way that the checker can establish")
        raise AmkError(Diagnostic("AMK206", str(error), facts=(reason,)), Exit.UNKNOWN) from error


def _emit_smt(folder: Path, verdict: Verdict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, proof in enumerate(verdict.proofs):
        _write(folder / f"{number:02d}.smt2", f"; {proof.obligation.name}\n{proof.obligation.script}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        message = f"cannot write the file: {error.strerror}"
        raise AmkError(Diagnostic("AMK001", message, where=Where(file=str(path)))) from error
