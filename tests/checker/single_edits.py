"""All single edits of names and integers of small schedules, offered to the checker alone.

    python -m tests.checker.single_edits --base fenced --seconds 600 --record tests/records/checker_single_edits.json

An edit puts another name of the file where a name stands, or another integer where an integer stands. Each well-formed
one is offered with its own certificate, and with that of the base under its name. What is accepted runs on the
interpreter, under two orders and in two launches: other tokens than the base's, a fault or a deadlock is a hole. The
order of edits is a fixed shuffle, so any prefix is a sample; a record says how far it is, and a run goes on there.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from amk.adversary.subjects import subject
from amk.bench.tools.provenance import commit
from amk.interpreter.fault import Fault
from amk.interpreter.interpret import Machine
from amk.interpreter.order import named_order
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule, mode_of
from tests.checker.offer import Certificate, certificate_of, reasons
from tests.engine.tiny import RandomTensors
from tests.validator.plans import SMALL, from_document, small_plan

Document = dict[str, Any]
Path_ = tuple[str | int, ...]
BASES = ("fenced", "tagged", "drawing")


def document_of(base: str) -> Document:
    if base == "drawing":
        return dict(json.loads(small_plan(SMALL["drawing"], workers=2).model_dump_json()))
    return copy.deepcopy(subject(base, 2, 2, 1).document)


def leaves(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every scalar, with its path; the model and the target say what is meant and where, and are left as they are."""
    if isinstance(value, dict):
        for key, each in value.items():
            if not (path == () and key in ("model", "target")):
                yield from leaves(each, (*path, key))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from leaves(each, (*path, i))
    else:
        yield path, value


def edits(document: Document, seed: int = 0) -> list[tuple[Path_, Any]]:
    """(path, new value), shuffled."""
    kinds = [{e["name"] for e in document[k]} for k in ("buffers", "counters", "roles", "streams")]
    pairs: list[tuple[Path_, Any]] = []
    for path, value in leaves(document):
        if isinstance(value, int) and not isinstance(value, bool):
            around = {value - 1, value + 1, 0, -1, -value, 2 * value, 2**31, 2**32, value + 2**32, value - 2**32}
            pairs += [(path, other) for other in sorted(around - {value})]
        elif isinstance(value, bool):
            pairs.append((path, not value))
        elif isinstance(value, str) and path[-1] != "name":
            names = set().union(*(kind for kind in kinds if value in kind))
            pairs += [(path, other) for other in sorted(names - {value})]
    random.Random(seed).shuffle(pairs)
    return pairs


def edited(document: Document, path: Path_, value: Any) -> Document:
    found: Any = copy.deepcopy(document)
    at = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return dict(found)


def tokens_of(schedule: Schedule, order: str) -> list[int] | str:
    """Of a launch of three tokens and one of two, in one text; the name of the fault if there is one."""
    try:
        machine = Machine(schedule, RandomTensors(schedule.model))
        machine.set("state", np.array([3, 0, 0, 0], np.int32))
        machine.set("request", np.array([0, -1, -1, -1, -1], np.int32))
        if mode_of(schedule) != "greedy":
            machine.set("sampling", np.array([0, 0, 0, 1, 2], np.int32))
        found: list[int] = []
        for count in (3, 2):
            machine.launch(count, named_order(order))
            found += machine.get("output")[:count].tolist()
    except (Fault, KeyError, IndexError, ValueError, OverflowError) as error:
        return type(error).__name__
    return found


class Base:
    """A schedule, its certificate, and its tokens."""

    def __init__(self, name: str) -> None:
        self.document = document_of(name)
        schedule = from_document(self.document)
        certificate = certificate_of(schedule)
        assert isinstance(certificate, dict)
        self.twin: Certificate = certificate
        self.tokens = tokens_of(schedule, "round-robin")
        assert isinstance(self.tokens, list) and tokens_of(schedule, "random:1") == self.tokens

    def judge(self, path: Path_, value: Any) -> str:
        """ill-formed, refused, or accepted; or what a hole shows."""
        try:
            schedule = from_document(edited(self.document, path, value))
        except AmkError:
            return "ill-formed"
        if "" not in reasons(schedule, self.twin):
            return "refused"
        for order in ("round-robin", "random:1"):
            found = tokens_of(schedule, order)
            if found != self.tokens:
                return f"hole: {found}"
        return "accepted"


def run(base: str, start: int, seconds: float) -> tuple[int, Counter[str], list[Any]]:
    """(where the next run goes on, counts, holes) of edits from number `start` on."""
    reference, end = Base(base), time.monotonic() + seconds
    counts, holes, at = Counter[str](), [], start
    for at, (path, value) in enumerate(edits(reference.document)[start:], start):
        if time.monotonic() > end:
            return at, counts, holes
        found = reference.judge(path, value)
        counts[found.split(":")[0]] += 1
        if found.startswith("hole"):
            holes.append([list(path), value, found])
            print(f"{base} {path} := {value}: {found}", flush=True)
    return at + 1, counts, holes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", choices=BASES, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args(arguments)
    record = json.loads(options.record.read_text()) if options.record.exists() else {}
    known = record.get(options.base, {"done": 0, "counts": {}, "holes": []})
    done, counts, holes = run(options.base, known["done"], options.seconds)
    total = Counter(known["counts"]) + counts
    where = {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "of": len(edits(document_of(options.base))),
    }
    record[options.base] = {"done": done, "counts": dict(total), "holes": known["holes"] + holes} | where
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(record[options.base])
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
