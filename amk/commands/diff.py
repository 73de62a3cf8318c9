"""`amk diff`: the edits that turn one schedule into another."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from amk.commands.output import add_format
from amk.commands.schedule_file import read_schedule
from amk.commands.trace import write
from amk.report.diagnostic import Exit
from amk.schedule_ir.edits.apply import edit_text
from amk.schedule_ir.edits.difference import difference
from amk.schedule_ir.edits.file import edits_json
from amk.schedule_ir.edits.kinds import EditList


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="schedule file")
    parser.add_argument("after", type=Path, help="schedule file of the same model and GPU")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the edits, for `amk edit`")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    (before, _), (after, _) = read_schedule(arguments.before), read_schedule(arguments.after)
    edits = difference(before, after)
    text = edits_json(EditList(repair=False, edits=edits)).decode("ascii")
    if arguments.output is not None:
        write(arguments.output, text)
    if arguments.format == "json":
        sys.stdout.write(text)
    else:
        print("\n".join(edit_text(edit) for edit in edits) or "the schedules are the same")
    return int(Exit.SAFE)
