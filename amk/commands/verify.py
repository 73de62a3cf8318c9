"""`amk verify`: is this schedule safe for every interleaving, position and number of tokens."""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amk.commands.output import add_format, print_json, tell_no_certificate
from amk.commands.schedule_file import read_schedule
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where, because
from amk.report.json_file import format_of
from amk.schedule_ir.codec import canonical_json, located, schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import Verdict, obligations_of, verify

if TYPE_CHECKING:
    from amk.repair.search import Repair

OFFERED_S = 6.0
SOUGHT_S = 60.0
"""Seconds that a fix is looked for: while saying what is wrong, and when asked to repair."""
EXITS = {"SAFE": Exit.SAFE, "UNSAFE": Exit.UNSAFE, "UNKNOWN": Exit.UNKNOWN}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "schedule",
        type=Path,
        help="schedule as `amk plan` writes it, a case that holds one, or a system of any kernel, flat or with loops",
    )
    parser.add_argument(
        "others", type=Path, nargs="*", metavar="other",
        help="schedules whose launches take turns with its own on one text: do they fit together",
    )  # fmt: skip
    parser.add_argument(
        "--witness", type=Path, metavar="FILE", help="write the witness of an UNSAFE verdict, for `amk replay`"
    )
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="write the evidence for SAFE, for `amk check-certificate`"
    )
    parser.add_argument(
        "--emit-system", type=Path, metavar="FILE", help="write the flat system for other tools (small schedules)"
    )
    parser.add_argument(
        "--emit-promela", type=Path, metavar="FILE", help="write the flat system as a model for spin (tiny schedules)"
    )
    parser.add_argument("--pos", type=int, default=0, help="first position of an emitted system (default: 0)")
    parser.add_argument("--tokens", type=int, default=2, help="tokens of an emitted system (default: 2)")
    parser.add_argument("--emit-smt", type=Path, metavar="DIR", help="write every proof obligation as SMT-LIB")
    parser.add_argument(
        "--solver", choices=("z3", "cvc5", "both"), default="z3", help="who decides the obligations (default: z3)"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="answer UNKNOWN after this time")
    parser.add_argument("--fix", action="store_true", help="look longer for a verified fix, and write it with -o")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="with --fix: write the repaired schedule")
    parser.add_argument(
        "--fix-seconds", type=float, metavar="SECONDS",
        help=f"compute so long for a verified fix; 0 does not look (default: {OFFERED_S:g}, with --fix {SOUGHT_S:g})",
    )  # fmt: skip
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.output is not None and not arguments.fix:
        raise AmkError(Diagnostic("AMK005", "-o writes the schedule that --fix finds; give both"))
    if arguments.others:
        from amk.commands.verify_together import run as run_together

        return run_together(arguments)
    if (system := format_of(arguments.schedule)) is not None:
        from amk.commands.verify_system import run as run_system

        return run_system(arguments, system)
    schedule, positions = read_schedule(arguments.schedule)
    if arguments.emit_system or arguments.emit_promela:
        _emit_system(arguments, schedule)
    started = time.process_time()
    verdict = verify(schedule, timeout_s=arguments.timeout, solver=arguments.solver)
    took = time.process_time() - started
    if arguments.witness and verdict.evidence is not None:
        _write_parts(arguments.witness, verdict.evidence.json_parts(schedule_hash(schedule)))
    if arguments.certificate and verdict.safe:
        _write(arguments.certificate, _certificate(schedule))
    tell_no_certificate(arguments.certificate, verdict.status)
    if arguments.emit_smt:
        _emit_smt(arguments.emit_smt, schedule)
    repair = _repair(arguments, schedule, verdict, took)
    diagnostics = [located(d, str(arguments.schedule), positions) for d in verdict.diagnostics]
    if repair is not None and diagnostics:
        from amk.repair.text import fix

        diagnostics[0] = replace(diagnostics[0], fix=fix(repair.description, repair.before, repair.document, positions))
    if arguments.format == "json":
        from amk.report.render import as_json

        print_json(_summary(schedule, verdict) | {"diagnostics": [as_json(d) for d in diagnostics]})
    else:
        _print_text(arguments, schedule, verdict, diagnostics)
    return int(EXITS[verdict.status])


def _repair(arguments: argparse.Namespace, schedule: Schedule, verdict: Verdict, took: float) -> "Repair | None":
    """A verified fix, written where --fix asks for it. Nothing is sought for what was not decided in time, nor where a
    verdict takes longer than is sought: each candidate needs one. took: processor time of the verdict."""
    seconds = arguments.fix_seconds
    if seconds is None:
        seconds = SOUGHT_S if arguments.fix else OFFERED_S
    hopeless = seconds < took or verdict.safe or any(d.code == "AMK205" for d in verdict.diagnostics)
    repair = None
    if not hopeless:
        from amk.repair.search import find_repair  # most schedules are SAFE, and its planner takes time to load

        repair = find_repair(schedule, verdict, seconds)
    if arguments.output is not None and (repair is not None or verdict.safe):
        _write(arguments.output, canonical_json(repair.schedule if repair else schedule).decode("ascii").rstrip("\n"))
        print(f"wrote {arguments.output}", file=sys.stderr)
    return repair


def _summary(schedule: Schedule, verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.status,
        "schedule": schedule_hash(schedule),
        "model": schedule.model.name,
        "target": schedule.target.name,
        "deterministic": verdict.deterministic,
        "tokens_to_wrap": verdict.tokens_to_wrap,
        "witness": None if verdict.evidence is None else verdict.evidence.kind,
        "stats": verdict.stats,
        "proofs": [{"name": p.obligation.name, "outcome": p.outcome} for p in verdict.proofs],
    }


def _print_text(
    arguments: argparse.Namespace, schedule: Schedule, verdict: Verdict, diagnostics: list[Diagnostic]
) -> None:
    if diagnostics:
        arguments.findings.tell(diagnostics)
    stats = verdict.stats
    print(f"{verdict.status}  {schedule.model.name} on {schedule.target.name}, {schedule.launch.workers} workers")
    if verdict.safe:
        print("  any interleaving, any number of tokens, every position below", f"{schedule.kv.context:,}")
        print(f"  deterministic: yes   tokens until a counter wraps: {verdict.tokens_to_wrap:,}")
        print(f"  {stats['nodes']:,} nodes, {stats['obligations']} obligations proved, {stats['seconds']:.2f} s")
    elif verdict.evidence is not None:
        told_where = f"written to {arguments.witness}" if arguments.witness else "not written; use --witness FILE"
        print(f"  witness ({verdict.evidence.kind}) {told_where}")
    if diagnostics:
        print(f"  `amk explain {diagnostics[0].code}` says more")


def _emit_system(arguments: argparse.Namespace, schedule: Schedule) -> None:
    from amk.validator.export.flat_file import flat_file
    from amk.validator.export.promela import promela
    from amk.validator.order.two_levels import NotComposable
    from amk.validator.program.system import from_json
    from amk.validator.program.trace import TooLarge
    from amk.validator.static.outside import check_outside

    last = schedule.kv.context - arguments.tokens * schedule.rows
    if arguments.tokens < 1 or not 0 <= arguments.pos <= last:
        message = f"--pos {arguments.pos} with --tokens {arguments.tokens} leaves the context of {schedule.kv.context}"
        raise AmkError(Diagnostic("AMK005", message))
    if outside := check_outside(schedule):
        reason = because("a flat system has waits for at least a value, and increments, and nothing else")
        raise AmkError([replace(d, facts=(*d.facts, reason)) for d in outside], Exit.UNKNOWN)
    try:
        content = flat_file(schedule, arguments.pos, arguments.tokens)
    except TooLarge as error:
        raise AmkError(Diagnostic("AMK002", str(error))) from error
    except NotComposable as error:
        raise AmkError(Diagnostic("AMK513", str(error)), Exit.UNSAFE) from error
    if arguments.emit_system:
        _write(arguments.emit_system, json.dumps(content, separators=(",", ":")))
    if arguments.emit_promela:
        # where hints or words make a difference, races are asked of what orders, and only `--emit-system` has it all
        edges = "word" if "word" in content["systems"] else "block"
        model = promela(from_json(content["systems"][edges]))
        _write(arguments.emit_promela, f"/* schedule {content['schedule']}, edges: {edges} */\n{model}")


def _certificate(schedule: Schedule) -> str:
    from amk.validator.export.of_schedule import evidence

    return json.dumps(evidence(schedule), separators=(",", ":"))


def _emit_smt(folder: Path, schedule: Schedule) -> None:
    """One script per obligation, whatever the verdict; a solver that says `unsat` has proved it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        where = Where(file=str(folder))
        raise AmkError(Diagnostic("AMK001", f"cannot make the folder: {error.strerror}", where=where)) from error
    head = f"; schedule {schedule_hash(schedule)}\n; expected: unsat; otherwise"
    for number, item in enumerate(obligations_of(schedule)):
        _write(folder / f"{number:02d}.smt2", f"{head} {item.code}\n; {item.name}\n{item.script.rstrip()}")


def _write(path: Path, text: str) -> None:
    _write_parts(path, (text,))


def _write_parts(path: Path, parts: Iterable[str]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(parts)
            file.write("\n")
    except OSError as error:
        message = f"cannot write the file: {error.strerror}"
        raise AmkError(Diagnostic("AMK001", message, where=Where(file=str(path)))) from error
