"""`amk edit`: make a list of edits to a schedule, or list the names that edits can use."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from amk.commands.output import add_format, print_json
from amk.commands.schedule_file import read_schedule
from amk.commands.trace import write
from amk.planner.replan import replanned
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.codec import canonical_json, schedule_hash
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.edits.file import load_edits
from amk.schedule_ir.edits.tree import tree, walk


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", type=Path, help="schedule file")
    parser.add_argument("edits", type=Path, nargs="?", help="file of edits, as `amk diff` writes")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the edited schedule (default: stdout)")
    parser.add_argument("--names", action="store_true", help="list the names of the schedule's steps and loops instead")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    schedule, _ = read_schedule(arguments.schedule)
    if arguments.names:
        print("\n".join(node.name for program in schedule.programs for _, node in walk(tree(program))))
        return int(Exit.SAFE)
    if arguments.edits is None:
        raise AmkError(Diagnostic("AMK005", "a file of edits is needed, or --names"))
    edits = load_edits(arguments.edits)
    edited = apply(schedule, edits.edits, repair=edits.repair, replan=replanned)
    for line in edited.repaired:
        print(f"repaired: {line}", file=sys.stderr)
    if arguments.output is None:
        sys.stdout.write(canonical_json(edited.schedule).decode("ascii"))
        return int(Exit.SAFE)
    write(arguments.output, canonical_json(edited.schedule).decode("ascii"))
    if arguments.format == "json":
        print_json({"schedule": schedule_hash(edited.schedule), "applied": edited.applied, "repaired": edited.repaired})
    else:
        print(f"made {len(edited.applied)} edits, wrote {arguments.output}; `amk verify` says whether it is safe")
    return int(Exit.SAFE)
