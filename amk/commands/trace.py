"""`amk trace`: a timeline of a schedule in logical order, of a witness, or of a launch on a GPU.

Without a choice, a schedule that is UNSAFE by an interleaving is drawn as that interleaving: its witness.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from amk.commands.format_arguments import positive
from amk.commands.output import add_format, print_json, print_table
from amk.commands.schedule_file import read_schedule
from amk.commands.witness_file import read_witness
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where
from amk.report.json_file import format_of
from amk.report.timeline import MalformedTimeline, Timeline
from amk.report.timeline_html import html, shown
from amk.report.timeline_perfetto import perfetto
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.systems.document import load_system
from amk.systems.loop_document import load_loops
from amk.systems.loop_program import drawn
from amk.systems.verdict import judged
from amk.trace.from_recording import of_recording
from amk.trace.from_schedule import Choice, of_schedule
from amk.trace.from_system import of_system
from amk.trace.from_witness import NotOfThisSchedule, of_witness
from amk.trace.recording import Recording, read_recording
from amk.validator.order.two_levels import NotComposable
from amk.validator.program.trace import TooLarge
from amk.validator.verify import Verdict, verify

LARGE = 10 * 2**20
"""Bytes of a page beyond which browsers become slow."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", type=Path, help="schedule as `amk plan` writes it, or a system")
    parser.add_argument(
        "-o", "--output", action="append", default=[], type=output, metavar="FILE",
        help="X.html: a page that needs nothing else; X.json: for https://ui.perfetto.dev; may be given twice",
    )  # fmt: skip
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--witness", type=Path, metavar="FILE", help="draw this witness of the schedule")
    source.add_argument("--logical", action="store_true", help="draw the order of work, of an UNSAFE schedule too")
    source.add_argument("--measure", action="store_true", help="record a launch on this machine's GPU and draw it")
    source.add_argument("--from", dest="recorded", type=Path, metavar="FILE", help="draw what --record wrote")
    parser.add_argument("--record", type=Path, metavar="FILE", help="with --measure: keep the raw recording")
    parser.add_argument(
        "--workers", type=numbers, metavar="0,5,7-9", help="workers to show (default: eight that matter)"
    )
    parser.add_argument("--warps", choices=("roles", "all"), default="roles", help="one warp a role, or all of them")
    parser.add_argument("--layers", choices=("few", "all"), default="few", help="of the logical order (default: few)")
    parser.add_argument("--tokens", type=positive, help="tokens (default: 1; of a recorded launch: 4)")
    parser.add_argument(
        "--pos", type=int, help="position of the first token, or of the recorded one (default: 0, or 128)"
    )
    add_format(parser)


def output(text: str) -> Path:
    """A path that ends in .html or .json."""
    if not text.endswith((".html", ".json")):
        raise argparse.ArgumentTypeError(f"'{text[:80]}' ends neither in .html nor in .json")
    return Path(text)


def numbers(text: str) -> tuple[int, ...]:
    """`0,5,7-9` -> (0, 5, 7, 8, 9)."""
    values: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"'{part[:40]}' is neither a number nor a range such as 7-9")
        values += range(int(first), min(int(last or first), 4095) + 1)
    return tuple(dict.fromkeys(values))


def run(arguments: argparse.Namespace) -> int:
    if (kind := format_of(arguments.schedule)) is not None:
        return _run_system(arguments, kind)
    schedule, _ = read_schedule(arguments.schedule)
    _check(arguments, schedule)
    try:
        timeline = _timeline(arguments, schedule)
    except (TooLarge, MalformedTimeline, NotOfThisSchedule) as error:
        code = "AMK002" if isinstance(error, TooLarge) else "AMK005"
        where = Where(file=str(arguments.recorded or arguments.witness or arguments.schedule))
        raise AmkError(Diagnostic(code, str(error), where=where)) from error
    except NotComposable as error:
        raise AmkError(Diagnostic("AMK513", str(error)), Exit.UNSAFE) from error
    for path in arguments.output:
        write(path, html(timeline) if path.suffix == ".html" else json.dumps(perfetto(timeline)) + "\n")
    if arguments.format == "json":
        print_json(summary(schedule_hash(schedule), timeline))
    else:
        _print(timeline)
    return int(Exit.SAFE)


def _run_system(arguments: argparse.Namespace, kind: str) -> int:
    """A system of any kernel: its witness, or a run; of one with loops that of few laps."""
    options = (arguments.witness, arguments.logical, arguments.measure, arguments.recorded, arguments.workers)
    if any(options):
        message = "of a system the verdict's own run is drawn: leave the choice out"
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(arguments.schedule))))
    loops = kind == "loops"
    verdict = drawn(load_loops(arguments.schedule)) if loops else judged(load_system(arguments.schedule))
    timeline = of_system(verdict)
    for path in arguments.output:
        write(path, html(timeline) if path.suffix == ".html" else json.dumps(perfetto(timeline)) + "\n")
    if arguments.format == "json":
        print_json(summary(verdict.system.block.digest, timeline))
    else:
        _print(timeline)
    return int(Exit.SAFE)


def summary(digest: str, timeline: Timeline) -> dict[str, Any]:
    return {
        "schedule": digest,
        "title": timeline.title,
        "unit": timeline.unit,
        "length": timeline.end,
        "tracks": len(timeline.tracks),
        "spans": len(timeline.spans),
        "arrows": len(timeline.arrows),
        "marked": sum(span.marked for span in timeline.spans),
        "tables": [asdict(table) for table in timeline.tables],
        "notes": list(timeline.notes),
    }


def _print(timeline: Timeline) -> None:
    print(timeline.title)
    spans, arrows = len(timeline.spans), len(timeline.arrows)
    print(f"{len(timeline.tracks)} tracks, {spans:,} spans, {arrows:,} arrows, {shown(timeline.end)} {timeline.unit}")
    for table in timeline.tables:
        print(f"\n{table.title}")
        print_table(table.header, [tuple(shown(cell) for cell in row) for row in table.rows])
    for note in timeline.notes:
        print(f"  {note}")


def _check(arguments: argparse.Namespace, schedule: Schedule) -> None:
    wrong = [w for w in arguments.workers or () if w >= schedule.launch.workers]
    last = schedule.kv.context - (arguments.tokens or 1)
    message = ""
    if wrong:
        message = f"--workers {wrong[0]}: the schedule has workers 0 to {schedule.launch.workers - 1}"
    elif not 0 <= (arguments.pos or 0) <= last:
        message = f"--pos {arguments.pos}: the context of {schedule.kv.context} has room for positions 0 to {last}"
    elif arguments.record is not None and not arguments.measure:
        message = "--record keeps what --measure measures; --from draws it"
    if message:
        raise AmkError(Diagnostic("AMK005", message))


def _timeline(arguments: argparse.Namespace, schedule: Schedule) -> Timeline:
    every = arguments.warps == "all"
    if arguments.witness is not None:
        return _witness(arguments.witness, schedule, arguments.workers)
    if arguments.measure or arguments.recorded is not None:
        recording = _recording(arguments, schedule)
        return of_recording(schedule, recording, arguments.workers, every)
    choice = Choice(arguments.workers, every, arguments.layers == "all", arguments.pos or 0, arguments.tokens or 1)
    if arguments.logical or every or choice.tokens > 1 or choice.pos or arguments.layers == "all":
        return of_schedule(schedule, choice)
    verdict = verify(schedule)
    if verdict.evidence is None:
        return _with_notes(of_schedule(schedule, choice), _verdict_notes(verdict) if not verdict.safe else ())
    drawn = of_witness(schedule, verdict.evidence.system, verdict.evidence.witness, arguments.workers)
    return _with_notes(drawn, (*_verdict_notes(verdict), "--logical draws the order of work."))


def _verdict_notes(verdict: Verdict) -> tuple[str, ...]:
    """What is wrong, as notes."""
    return tuple(f"{verdict.status}: {d.code} {d.message}" for d in verdict.diagnostics[:3])


def _with_notes(timeline: Timeline, notes: tuple[str, ...]) -> Timeline:
    return replace(timeline, notes=(*notes, *timeline.notes))


def _position(arguments: argparse.Namespace, schedule: Schedule) -> int:
    """Of the recorded token."""
    position: int | None = arguments.pos
    return min(128, schedule.kv.context - 1) if position is None else position


def _witness(path: Path, schedule: Schedule, workers: tuple[int, ...] | None) -> Timeline:
    evidence = read_witness(path)
    if evidence.schedule != schedule_hash(schedule):
        message = "the witness is of another schedule"
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path)), help="give the schedule it is about"))
    return of_witness(schedule, evidence.system, evidence.witness, workers)


def _recording(arguments: argparse.Namespace, schedule: Schedule) -> Recording:
    if arguments.recorded is not None:
        return read_recording(arguments.recorded, schedule)
    # Imported here: drawing needs neither a GPU nor torch.
    measure = importlib.import_module("amk.commands.trace_measure").measure
    recording: Recording = measure(schedule, _position(arguments, schedule), arguments.tokens or 4)
    if arguments.record is not None:
        write(arguments.record, recording.model_dump_json() + "\n")
    return recording


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"cannot write the file: {error.strerror}"
        raise AmkError(Diagnostic("AMK001", message, where=Where(file=str(path)))) from error
    size = len(text.encode("utf-8", "replace"))
    hint = "; --workers makes it smaller" if path.suffix == ".html" and size > LARGE else ""
    print(f"wrote {path} ({size:,} bytes{hint})", file=sys.stderr)
