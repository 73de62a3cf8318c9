"""`amk import`: what other projects write about their kernels, as a flat system for `amk verify`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from amk.commands.output import add_format
from amk.commands.verify_system import write
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.report.json_file import MAX_FILE, read_bytes, read_json
from amk.systems.builder import System
from amk.systems.document import written
from amk.systems.importers.instruction_queues import instruction_queues
from amk.systems.importers.recorded import recorded
from amk.systems.importers.task_graph import task_graph

KINDS = {
    "task-graph": "the task graph that Mirage's persistent kernels dump",
    "instruction-queues": "instruction queues of HazyResearch's low-latency Llama megakernel",
    "trace": "a recorded run, which is checked at once by happens-before",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, help="; ".join(f"{kind}: {what}" for kind, what in KINDS.items()))
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the system (default: standard output)")
    parser.add_argument(
        "--fenced", action="store_true", help="instruction-queues: as if every wait and signal had its fence"
    )
    kinds = (
        ("--adds", "whose outputs are added to atomically"),
        ("--per-request", "that write their request's tokens"),
    )
    for option, what in kinds:
        parser.add_argument(
            option, type=int, action="append", default=[], metavar="TYPE", help=f"task-graph: type of tasks {what}"
        )
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.kind == "trace":
        return _trace(arguments)
    text = written(_system(arguments).flat())
    if arguments.output is not None:
        write(arguments.output, text)
    else:
        sys.stdout.write(text + "\n")
    return int(Exit.SAFE)


def _system(arguments: argparse.Namespace) -> System:
    value, file = read_json(arguments.file, MAX_FILE), str(arguments.file)
    if arguments.kind == "task-graph":
        return task_graph(value, file, arguments.adds, arguments.per_request)
    return instruction_queues(value, file, arguments.fenced)


def _trace(arguments: argparse.Namespace) -> int:
    """Exit 1 if the run has a race, else 0: that this run has none is no proof."""
    if arguments.output is not None:
        raise AmkError(Diagnostic("AMK005", "a trace is checked at once, and makes no system: leave -o out"))
    content = read_bytes(arguments.file, MAX_FILE).decode("utf-8", "replace")
    races = recorded(content.splitlines(), str(arguments.file))
    arguments.findings.tell(races)
    print(f"{len(races)} unordered pair{'s' * (len(races) != 1)} in this run; other runs were not looked at")
    return int(Exit.UNSAFE if races else Exit.SAFE)
