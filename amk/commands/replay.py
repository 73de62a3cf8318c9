"""`amk replay`: does a witness really show what it says. Runs its interleaving; the validator is not asked."""

import argparse
from pathlib import Path

from amk.commands.output import add_format, print_json
from amk.commands.witness_file import read_witness
from amk.judges.replay import replay
from amk.validator.system import System
from amk.validator.witness import Witness


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("witness", type=Path, help="file written by `amk verify --witness`")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    found = read_witness(arguments.witness)
    holds = replay(found.raw["system"], found.raw["witness"])
    if arguments.format == "json":
        print_json({"holds": holds, "kind": found.witness.kind, "schedule": found.schedule})
    else:
        shown = _described(found.system, found.witness)
        print(f"{'CONFIRMED' if holds else 'NOT CONFIRMED'}  {found.witness.kind}: {shown}")
    return 0 if holds else 1


def _described(system: System, witness: Witness) -> str:
    events = ", ".join(system.event_name(event) for event in witness.events[:4])
    steps = sum(count for _, count in witness.order)
    place = "" if witness.buffer is None else f" at byte {witness.byte} of {system.buffer_name(witness.buffer)}"
    return f"after {steps} of {system.events} events: {events}{place}"
