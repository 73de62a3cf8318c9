"""`amk check-certificate`: does a certificate prove its schedule SAFE. The validator is not asked."""

import argparse
import gc
from hashlib import sha256
from pathlib import Path

from amk.checker.certificate import Verdict, check_certificate
from amk.commands.output import add_format, print_json
from amk.commands.schedule_file import read_certificate, read_schedule
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where, because
from amk.report.json_file import MAX_FILE, format_of, read_json
from amk.schedule_ir.codec import schedule_hash
from amk.systems.document import load_system
from amk.systems.loop_document import canonical, load_loops

MAX_BYTES = 64 * 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", type=Path, help="schedule, or system")
    parser.add_argument("certificate", type=Path, help="file written by `amk verify --certificate`")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    if (kind := format_of(arguments.schedule)) is not None:
        return _run_loops(arguments) if kind == "loops" else _run_system(arguments)
    schedule, _ = read_schedule(arguments.schedule)
    certificate = read_certificate(arguments.certificate, MAX_BYTES, "amk.certificate")
    gc.disable()  # many small objects are made and few die
    digest = schedule_hash(schedule)
    verdict = check_certificate(schedule, digest, certificate)
    if arguments.format == "json":
        print_json({"accepted": verdict.accepted, "reason": verdict.reason, "schedule": digest})
    elif verdict.accepted:
        print(f"ACCEPTED  the certificate proves {schedule.name} SAFE ({digest[:16]})")
    if not verdict.accepted:
        raise AmkError(refusal(verdict, str(arguments.certificate)), Exit.UNKNOWN)
    return 0


def _run_system(arguments: argparse.Namespace) -> int:
    from amk.systems.proof import check

    system = load_system(arguments.schedule)
    content = read_json(arguments.schedule, MAX_FILE)
    verdict = check(content, read_certificate(arguments.certificate, MAX_FILE, "amk.flat-certificate"))
    if arguments.format == "json":
        print_json({"accepted": verdict.accepted, "reason": verdict.reason, "system": system.block.digest})
    elif verdict.accepted:
        print(f"ACCEPTED  the certificate proves {system.name} SAFE ({system.block.digest[:16]})")
    if not verdict.accepted:
        raise AmkError(refusal(Verdict(False, verdict.reason), str(arguments.certificate)), Exit.UNKNOWN)
    return 0


def _run_loops(arguments: argparse.Namespace) -> int:
    from amk.systems.loop_proof.check import check

    read = load_loops(arguments.schedule)
    certificate = read_certificate(arguments.certificate, MAX_FILE, "amk.loop-certificate")
    verdict = check(read.document.model_dump(mode="json"), certificate)
    digest = sha256(canonical(read.document).encode()).hexdigest()
    if arguments.format == "json":
        print_json({"accepted": verdict.accepted, "reason": verdict.reason, "system": digest})
    elif verdict.accepted:
        print(f"ACCEPTED  the certificate proves {read.document.name} SAFE for all its parameters ({digest[:16]})")
    if not verdict.accepted:
        raise AmkError(refusal(Verdict(False, verdict.reason), str(arguments.certificate)), Exit.UNKNOWN)
    return 0


def refusal(verdict: Verdict, file: str) -> Diagnostic:
    reason = because("a rejected certificate proves nothing; it does not say that what it is for is unsafe")
    return Diagnostic("AMK206", verdict.reason, where=Where(file=file), facts=(reason,))
