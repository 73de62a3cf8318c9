"""`amk replay`: does a witness really show what it says. Runs its interleaving; the validator is not asked."""

import argparse
from pathlib import Path
from typing import Any

from amk.commands.output import add_format, print_json
from amk.commands.witness_file import MAX_BYTES, read_witness
from amk.judges.replay import replay
from amk.report.json_file import read_json
from amk.systems.run_witness import FORMAT as RUN
from amk.systems.run_witness import replay_run
from amk.validator.evidence.witness import Witness
from amk.validator.program.system import System


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("witness", type=Path, help="file written by `amk verify --witness`")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    raw = read_json(arguments.witness, MAX_BYTES)
    if isinstance(raw, dict) and raw.get("format") == RUN:
        return _replay_run(arguments, raw)
    evidence = read_witness(arguments.witness)
    holds = replay(evidence.raw["system"], evidence.raw["witness"])
    if arguments.format == "json":
        print_json({"holds": holds, "kind": evidence.witness.kind, "schedule": evidence.schedule})
    else:
        shown = _described(evidence.system, evidence.witness)
        print(f"{'CONFIRMED' if holds else 'NOT CONFIRMED'}  {evidence.witness.kind}: {shown}")
    return 0 if holds else 1


def _replay_run(arguments: argparse.Namespace, raw: dict[str, Any]) -> int:
    """A run of a system with barriers by phase or flags."""
    holds = replay_run(raw, str(arguments.witness))
    if arguments.format == "json":
        print_json({"holds": holds, "kind": raw["kind"], "schedule": None})
    else:
        steps = sum(count for _, count in raw["order"])
        print(f"{'CONFIRMED' if holds else 'NOT CONFIRMED'}  {raw['kind']}: after {steps} events")
    return 0 if holds else 1


def _described(system: System, witness: Witness) -> str:
    events = ", ".join(system.event_name(event) for event in witness.events[:4])
    steps = sum(count for _, count in witness.order)
    place = "" if witness.buffer is None else f" at byte {witness.byte} of {system.buffer_name(witness.buffer)}"
    return f"after {steps} of {system.events} events: {events}{place}"
