"""`amk verify` of a system, flat or with loops: the verdict on any kernel that synchronises by counters."""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from amk.commands.output import print_json, tell_no_certificate
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where, because
from amk.report.json_file import MAX_FILE, Positions, read_bytes
from amk.report.render import as_json
from amk.schedule_ir.codec import located
from amk.systems.document import load_system
from amk.systems.flat_certificate import certificate
from amk.systems.loop_certificate import loop_certificate
from amk.systems.loop_document import Read, canonical, load_loops
from amk.systems.loop_program import judged_program
from amk.systems.open_loop import LoopVerdict
from amk.systems.verdict import Verdict, judged
from amk.validator.export.certificate import NotSafe

EXITS = {"SAFE": Exit.SAFE, "UNSAFE": Exit.UNSAFE, "UNKNOWN": Exit.UNKNOWN}
SCHEDULES_ONLY = ("fix", "output", "emit_system", "emit_promela", "emit_smt", "timeout")


def run(arguments: argparse.Namespace, kind: str) -> int:
    """The command line of `amk verify`, whose file is a system of this kind: flat, or with loops."""
    path: Path = arguments.schedule
    for name in SCHEDULES_ONLY:
        if getattr(arguments, name) not in (None, False):
            message = f"--{name.replace('_', '-')} is for schedules, and {path} is a system"
            raise AmkError(Diagnostic("AMK005", message))
    gc.disable()  # millions of numbers are read, and none of them is garbage
    return _run_loops(arguments, path) if kind == "loops" else _run_flat(arguments, path)


def _run_loops(arguments: argparse.Namespace, path: Path) -> int:
    """Witness and places are those of the smallest case that is wrong."""
    read = load_loops(path)
    verdict = judged_program(read)
    witness = None if verdict.unsafe is None else verdict.unsafe.witness_json()
    if arguments.certificate is not None and verdict.safe:
        certificate = loop_certificate(verdict, read.document)
        write(arguments.certificate, json.dumps(certificate, separators=(",", ":")))
    if arguments.witness is not None and witness is not None:
        write(arguments.witness, json.dumps(witness))
    tell_no_certificate(arguments.certificate, verdict.verdict)
    diagnostics = [_placed(diagnostic, path) for diagnostic in verdict.diagnostics]
    if arguments.format == "json":
        print_json(_loop_summary(verdict, read) | {"diagnostics": [as_json(d) for d in diagnostics]})
        return int(EXITS[verdict.verdict])
    arguments.findings.tell(diagnostics)
    print(f"{verdict.verdict}  {verdict.title}")
    if verdict.unsafe is not None:
        print(f"  wrong with {verdict.unsafe.system.name}")
        _tell_witness(arguments, verdict.unsafe)
    elif verdict.safe:
        print(f"  any interleaving, all of these values; up to {verdict.laps} laps unrolled, {verdict.seconds:.2f} s")
    if diagnostics:
        print(f"  `amk explain {diagnostics[0].code}` says more")
    return int(EXITS[verdict.verdict])


def _loop_summary(verdict: LoopVerdict, read: Read) -> dict[str, Any]:
    unsafe = verdict.unsafe
    return {
        "verdict": verdict.verdict,
        "system": read.document.name,
        "sha256": sha256(canonical(read.document).encode()).hexdigest(),
        "wrong": None if unsafe is None else unsafe.system.name,
        "witness": None if unsafe is None else unsafe.witness_kind,
        "stats": {"agents": len(read.document.agents), "laps_unrolled": verdict.laps, "seconds": verdict.seconds},
    }


def _run_flat(arguments: argparse.Namespace, path: Path) -> int:
    verdict = judged(load_system(path))
    if arguments.witness is not None and (witness := verdict.witness_json()) is not None:
        write(arguments.witness, json.dumps(witness))
    if arguments.certificate is not None and verdict.safe:
        write(arguments.certificate, json.dumps(_certified(verdict, path), separators=(",", ":")))
    tell_no_certificate(arguments.certificate, verdict.verdict)
    diagnostics = [_placed(diagnostic, path) for diagnostic in verdict.diagnostics]
    if arguments.format == "json":
        print_json(summary(verdict) | {"diagnostics": [as_json(d) for d in diagnostics]})
    else:
        _print(arguments, verdict, diagnostics)
    return int(EXITS[verdict.verdict])


def _placed(diagnostic: Diagnostic, path: Path) -> Diagnostic:
    """A place in the user's own file stays; one in the system's file gets its line."""
    where = diagnostic.where or Where()
    if where.file is not None:
        return diagnostic
    if where.path is None:
        return replace(diagnostic, where=Where(file=str(path)))
    return located(diagnostic, str(path), Positions(read_bytes(path, MAX_FILE)))


def summary(verdict: Verdict) -> dict[str, Any]:
    block = verdict.system.block
    return {
        "verdict": verdict.verdict,
        "system": verdict.system.name,
        "sha256": block.digest,
        "deterministic": verdict.deterministic,
        "witness": verdict.witness_kind,
        "stats": {
            "agents": block.agents, "events": block.events, "counters": block.counters,
            "accesses": len(block.access_lo), "seconds": verdict.seconds,
        },
    }  # fmt: skip


def _print(arguments: argparse.Namespace, verdict: Verdict, diagnostics: list[Diagnostic]) -> None:
    arguments.findings.tell(diagnostics)
    block = verdict.system.block
    print(f"{verdict.verdict}  {verdict.system.name}: {block.agents:,} agents, {block.events:,} events")
    if verdict.safe:
        print(
            f"  any interleaving; deterministic: {'yes' if verdict.deterministic else 'no, a float sum has no order'}"
        )
        print(f"  {block.counters:,} counters, {len(block.access_lo):,} accesses, {verdict.seconds:.2f} s")
    else:
        _tell_witness(arguments, verdict)
    if diagnostics:
        print(f"  `amk explain {diagnostics[0].code}` says more")


def _tell_witness(arguments: argparse.Namespace, verdict: Verdict) -> None:
    if verdict.witness_kind is not None:
        where = f"written to {arguments.witness}" if arguments.witness else "not written; use --witness FILE"
        print(f"  witness ({verdict.witness_kind}) {where}")


def _certified(verdict: Verdict, path: Path) -> dict[str, Any]:
    try:
        return certificate(verdict.system, verdict.safe)
    except NotSafe as error:
        fence = "its `fence` leaves reads before writes open, which is allowed, and which the checker refuses"
        reason = because(fence if verdict.system.edge_systems is not None else str(error))
        message = "the system is SAFE, and the flat checker cannot be shown why"
        where = Where(file=str(path))
        raise AmkError(Diagnostic("AMK215", message, where=where, facts=(reason,)), Exit.UNKNOWN) from error


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        message = f"cannot write the file: {error.strerror}"
        raise AmkError(Diagnostic("AMK001", message, where=Where(file=str(path)))) from error
