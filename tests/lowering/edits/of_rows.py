"""The recorded run of edits to device code that only steps of several rows reach, and to the kernels that pack and
unpack.

    python -m tests.lowering.edits.of_rows --seconds 1200

The rules are those of `rules.RULES` for ops. Edits are taken in a drawn order and judged until the time is over; a run
goes on where the record ends. A survivor counts as equivalent where `equivalent.json` proves that it computes the same.
Others are listed by name, and so are edits that are proved and refused.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amk.bench.tools.provenance import commit
from amk.engine import device_packing
from amk.lowering import headers
from amk.prefill.device_matrices import source_of
from amk.weights.codes import CODES
from tests.engine.test_device_packing import (
    NO_NUMBERS,
    PLANS,
    test_a_piece_is_far_behind_the_first,
    test_all_bytes_are_those_of_the_cpu,
    test_what_is_no_number_is_named,
)
from tests.lowering.edits import judge, rules
from tests.lowering.edits.rules import Edit
from tests.lowering.edits.run import KEPT, OTHERS, proof_of
from tests.prefill.rows import PACKED
from tests.prefill.test_unpack import test_chunks_become_the_rows_that_they_stand_for

RECORD = Path("tests/records/proof/lowering-edits-rows.json")
PACK, UNPACK = OTHERS
FUNCTIONS = (" rope_append_rows(C& c", " best_slot(const", " select_rows(C& c", " select(C& c")
"""Of headers with more than that, what steps of several rows run."""
LINES = {
    "amk/ops/attend.cuh": r"kRows|kTileColumns|kSharers|late|kQueries|share|ahead",
    "amk/ops/merge.cuh": r"kRows|kFrom|kGroup",
    "amk/ops/reduce_splits.cuh": r"kRows|kOutputs|kSlice|own|vector",
}
WHOLE = ("amk/ops/begin.cuh", "amk/ops/finish.cuh", "amk/token_rows.cuh", "amk/rows.cuh")
SAME = ("survived", "equivalent")
"""An edit that nothing refuses, without a proof and with one."""
Case = tuple[tuple[str, ...], Edit]


def in_function(text: str, at: int) -> bool:
    """Whether the place is in one of FUNCTIONS: between its head and the first brace at the start of a line."""
    starts = [text.index(name) for name in FUNCTIONS if name in text]
    return any(start < at < text.index("\n}", start) for start in starts)


def of_rows() -> list[Case]:
    """Edits of the kernel of rows, with the subjects that have the text."""
    found = []
    for names, edit in judge.all_edits():
        if "rows" in names and edit.file != rules.SOURCE:
            text = judge.texts("rows")[edit.file]
            start = text.rfind("\n", 0, edit.at) + 1
            line = text[start : text.find("\n", edit.at)]
            marked = edit.file in LINES and re.search(LINES[edit.file], line) is not None
            if edit.file in WHOLE or marked or in_function(text, edit.at):
                found.append((names, edit))
    return found


def _unpacks(ptx: str) -> None:
    for name in PACKED:
        test_chunks_become_the_rows_that_they_stand_for(name, ptx)


def _packs(ptx: str) -> None:
    test_a_piece_is_far_behind_the_first(ptx)
    with pytest.MonkeyPatch.context() as patch:
        for name in PLANS:
            test_all_bytes_are_those_of_the_cpu(name, ptx, patch)
        for found in NO_NUMBERS:
            with tempfile.TemporaryDirectory() as folder:
                test_what_is_no_number_is_named(found, Path(folder), ptx, patch)


KERNELS: dict[str, tuple[str, str, Callable[[str], None]]] = {
    "pack": (device_packing.SOURCE, PACK, _packs),
    "unpack": (source_of(CODES), UNPACK, _unpacks),
}
"""Source, the header that is edited, and what runs the PTX in the emulator and fails where it is wrong."""


def of_kernel(name: str) -> list[Case]:
    """Edits of the kernel that packs or unpacks."""
    source, header, _ = KERNELS[name]
    return [((name,), edit) for edit in rules.edits({header: headers.closure(source)[header]})]


def ran(name: str, edit: Edit) -> str:
    """What becomes of an edit of that kernel."""
    source, header, run = KERNELS[name]
    files = headers.closure(source)
    original = judge.built(source, files, "sm_90a")
    ptx = judge.built(source, files | {header: edit.of(files[header])}, "sm_90a")
    if ptx is None:
        return "does not compile"
    if ptx == original:
        return "equal PTX"
    try:
        run(ptx)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  a fault, other bytes, PTX that cannot be read
        return f"emulator: {type(error).__name__}"
    return "survived"


def judged(case: Case) -> str:
    """What becomes of an edit; kernels beside the sample's are asked where those keep it."""
    names, edit = case
    if names[0] in KERNELS:
        verdict = ran(names[0], edit)
    else:
        verdict = judge.judge(("rows", *names), edit)[1]
        if verdict == "survived" and (beside := judge.judge(judge.beside(edit), edit)[1]) not in KEPT:
            verdict = beside
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="0: look for proofs of survivors alone")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    limit = time.monotonic() + options.seconds
    edits: dict[str, Any] = json.loads(RECORD.read_text())["edits"] if RECORD.exists() else {}
    chosen = [*of_kernel("pack"), *of_kernel("unpack"), *Random(4).sample(found := of_rows(), len(found))]
    left = [case for case in chosen if case[1].name not in edits] if options.seconds else []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for (_, edit), verdict in zip(left, pool.imap(judged, left), strict=True):
            edits[edit.name] = {"kind": edit.kind, "new": edit.new, "verdict": verdict}
            write(chosen, edits)
            if time.monotonic() > limit:
                break
    write(chosen, edits)


def write(chosen: list[Case], edits: dict[str, Any]) -> None:
    """The record of judged edits, by name; whether survivors are proved equivalent is looked up."""
    proved = {edit.name for _, edit in chosen if edit.name in edits and proof_of(edit)}
    for name, one in edits.items():
        if one["verdict"] in SAME:
            one["verdict"] = SAME[name in proved]
    counts = Counter(one["verdict"] for one in edits.values())
    record = {
        "format": 1, "name": "lowering-edits-rows", "command": "python -m tests.lowering.edits.of_rows",
        "commit": commit(), "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}, no GPU used",
        "edits_there_are": len(chosen), "counts": dict(counts.most_common()),
        "survivors": sorted(name for name, one in edits.items() if one["verdict"] == SAME[0]),
        "proved_and_refused": sorted(name for name in proved if edits[name]["verdict"] not in (*SAME, *KEPT)),
        "edits": edits,
    }  # fmt: skip
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
