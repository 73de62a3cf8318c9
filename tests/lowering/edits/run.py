"""The recorded run: a sample of all edits, judged one after the other, resumed where the record ends.

    python -m tests.lowering.edits.run --seconds 600

The record holds command, commit, date, hardware and what became of every edit. Edits whose name or text has changed
since, and those that survived, are judged again. A survivor that `equivalent.json` proves to compute the same counts as
equivalent; one that is named there and does not survive is an error, exit 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from amk.bench.provenance import commit
from tests.lowering.edits.judge import all_edits, judge
from tests.lowering.edits.rules import SOURCE, Edit

RECORD = Path("tests/records/proof/lowering-edits.json")
Case = tuple[tuple[str, ...], Edit]
EQUIVALENT = Path(__file__).with_name("equivalent.json")
OF_A_RULE, OF_A_TEXT = 10, 2
"""Edits of one rule and subject that the sample takes: of the headers, and of the emitted text."""


def sample(found: list[Case]) -> list[Case]:
    """Evenly spaced edits of every rule in every subject, kinds in turn."""
    groups: dict[tuple[str, str, bool], list[Case]] = {}
    for names, edit in found:
        groups.setdefault((names[0], edit.name.split(":")[0], edit.file == SOURCE), []).append((names, edit))
    taken: list[tuple[int, Case]] = []
    for (_, _, in_text), group in groups.items():
        count = min(len(group), OF_A_TEXT if in_text else OF_A_RULE)
        taken += [(place, group[place * len(group) // count]) for place in range(count)]
    return [pair for _, pair in sorted(taken, key=lambda pair: pair[0])]


def equivalent() -> dict[str, str]:
    """Places of edits that change PTX and not what the kernel does, with the reason."""
    found: dict[str, str] = json.loads(EQUIVALENT.read_text())
    return found


def write(record: dict[str, Any], results: dict[str, dict[str, str]]) -> None:
    counts = Counter(f"{one['kind']}: {one['verdict']}" for one in results.values())
    classes = Counter(one["kind"].split(":")[0] for one in results.values() if one["verdict"] != "equal PTX")
    survivors = sorted(name for name, one in results.items() if one["verdict"] == "survived")
    text = json.dumps(
        record
        | {"changed": dict(sorted(classes.items())), "counts": dict(sorted(counts.items()))}
        | {"survivors": survivors, "edits": results},
        indent=1,
    )
    RECORD.with_suffix(".tmp").write_text(text + "\n")
    os.replace(RECORD.with_suffix(".tmp"), RECORD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    limit = time.monotonic() + parser.parse_args().seconds
    record: dict[str, Any] = {
        "format": 1, "name": "lowering-edits", "command": shlex.join(["python", "-m", "tests.lowering.edits.run"]),
        "commit": commit(), "date": datetime.now(UTC).date().isoformat(), "hardware": platform.processor() or "x86-64",
    }  # fmt: skip
    known = json.loads(RECORD.read_text())["edits"] if RECORD.exists() else {}
    chosen = sample(all_edits())
    results: dict[str, dict[str, str]] = {}
    for names, edit in chosen:
        key, content = f"{names[0]}: {edit.name}", {"kind": edit.kind, "new": edit.new}
        old = known.get(key, {})
        kept = old.get("verdict", "survived") not in ("survived", "equivalent")
        if kept and {k: old.get(k) for k in content} == content:
            results[key] = old
    print(f"{len(results)} of {len(chosen)} edits are in the record", file=sys.stderr)
    proved, wrong = equivalent(), list[str]()
    for names, edit in chosen:
        key = f"{names[0]}: {edit.name}"
        if key in results or time.monotonic() > limit:
            continue
        subject, verdict = judge(names, edit)
        if edit.place in proved:
            wrong += [key] if verdict not in ("survived", "equal PTX") else []
            verdict = "equivalent" if verdict == "survived" else verdict
        results[key] = {"kind": edit.kind, "new": edit.new, "verdict": verdict, "subject": subject}
        print(f"{len(results)}/{len(chosen)} {results[key]['verdict']:>16} {key[:110]}", file=sys.stderr, flush=True)
        write(record | {"sample": len(chosen), "of": "all edits of the rules"}, results)
    if wrong:
        sys.exit(f"named in {EQUIVALENT}, and refused: {wrong}")


if __name__ == "__main__":
    main()
