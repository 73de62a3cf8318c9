"""`amk replay`: does a witness really show what it says. Runs its interleaving; the validator is not asked."""

import argparse
from pathlib import Path

from amk.commands.output import add_format, print_json
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.schedule_ir.json_file import read_json
from amk.validator.evidence import FORMAT
from amk.validator.replay import replay
from amk.validator.system import MalformedSystem, System, from_json
from amk.validator.witness import MalformedWitness, Witness, witness_from_json

MAX_BYTES = 512 * 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("witness", type=Path, help="file written by `amk verify --witness`")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    raw = read_json(arguments.witness, MAX_BYTES)
    where = Where(file=str(arguments.witness))
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or "system" not in raw or "witness" not in raw:
        raise AmkError(Diagnostic("AMK005", f"not a witness file: expected format {FORMAT}", where=where))
    try:
        system = from_json(raw["system"])
        witness = witness_from_json(raw["witness"], system)
    except (MalformedSystem, MalformedWitness) as error:
        raise AmkError(Diagnostic("AMK005", str(error), where=where)) from error
    holds = replay(raw["system"], raw["witness"])
    if arguments.format == "json":
        print_json({"holds": holds, "kind": witness.kind, "schedule": raw.get("schedule")})
    else:
        print(f"{'CONFIRMED' if holds else 'NOT CONFIRMED'}  {witness.kind}: {_described(system, witness)}")
    return 0 if holds else 1


def _described(system: System, witness: Witness) -> str:
    events = ", ".join(system.event_name(event) for event in witness.events[:4])
    steps = sum(count for _, count in witness.order)
    place = "" if witness.buffer is None else f" at byte {witness.byte} of {system.buffer_name(witness.buffer)}"
    return f"after {steps} of {system.events} events: {events}{place}"
