"""Scores a tool on the benchmark. Needs Python 3.9 and nothing else; see card.md for the format of the cases.

    python score.py cases-v3.jsonl.gz results.jsonl
    python score.py cases-v3.jsonl.gz --run "amk verify {}" --limit 60

results.jsonl has one object a line: {"name": ..., "verdict": "SAFE" | "UNSAFE" | "UNKNOWN", "seconds": ...}. With --run
the command is run for each case with a file for {}; its exit status says the verdict: 0 SAFE, 1 UNSAFE, anything else
UNKNOWN. Exit status of this program: 0 if no verdict is false and none is missing, else 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Case = dict[str, Any]
VERDICTS = {0: "SAFE", 1: "UNSAFE"}


def read(path: str) -> list[Case]:
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def run(command: str, case: Case, limit: float) -> Case:
    """The tool's verdict on one case, and how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "system.json"
        file.write_text(json.dumps(case["system"]), encoding="utf-8")
        words = [str(file) if word == "{}" else word for word in shlex.split(command)]
        start = time.perf_counter()
        try:
            done = subprocess.run(words, capture_output=True, timeout=limit)
            verdict = VERDICTS.get(done.returncode, "UNKNOWN")
        except subprocess.TimeoutExpired:
            verdict = "UNKNOWN"
        return {"name": case["name"], "verdict": verdict, "seconds": time.perf_counter() - start}


def score(cases: list[Case], results: list[Case]) -> dict[str, Any]:
    """Counts, and the names of every case that is not as expected. Of two results of a case the last counts."""
    result_of = {result["name"]: result for result in results}
    found: dict[str, list[str]] = {name: [] for name in ("right", "false SAFE", "false UNSAFE", "UNKNOWN", "missing")}
    for case in cases:
        result = result_of.get(case["name"])
        verdict = None if result is None else result["verdict"]
        if verdict is None:
            kind = "missing"
        elif verdict == case["expected"]:
            kind = "right"
        else:
            kind = f"false {verdict}" if verdict in ("SAFE", "UNSAFE") else "UNKNOWN"
        found[kind].append(case["name"])
    known = {case["name"] for case in cases}
    seconds = [float(r["seconds"]) for name, r in result_of.items() if name in known and r.get("seconds") is not None]
    times = {"median": statistics.median(seconds), "most": max(seconds), "sum": sum(seconds)} if seconds else {}
    return {"cases": len(cases), "by_outcome": found, "seconds": times}


def by_family(cases: list[Case], result: dict[str, list[str]]) -> list[tuple[str, int, int]]:
    """Family, cases, right ones."""
    families = sorted({case["family"] for case in cases})
    right = set(result["right"])
    names = {family: [c["name"] for c in cases if c["family"] == family] for family in families}
    return [(family, len(names[family]), len(right & set(names[family]))) for family in families]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="scores verdicts on the benchmark")
    parser.add_argument("cases")
    parser.add_argument("results", nargs="?")
    parser.add_argument("--run", metavar="COMMAND", help="run this for each case, with its file for {}")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="per case (default: 60)")
    parser.add_argument("--write", metavar="FILE", help="with --run: keep the results")
    options = parser.parse_args(arguments)
    if (options.run is None) == (options.results is None):
        parser.error("give either results or --run")
    cases = read(options.cases)
    results = read(options.results) if options.results else [run(options.run, case, options.limit) for case in cases]
    if options.write:
        Path(options.write).write_text("".join(json.dumps(result) + "\n" for result in results), encoding="utf-8")
    report = score(cases, results)
    for family, count, right in by_family(cases, report["by_outcome"]):
        print(f"{family:12} {right:4} of {count} right")
    for kind, names in report["by_outcome"].items():
        print(f"{kind:12} {len(names):4}" + ("" if kind == "right" else "  " + " ".join(names[:8])).rstrip())
    if report["seconds"]:
        print("seconds      " + ", ".join(f"{name} {value:.3f}" for name, value in report["seconds"].items()))
    bad = any(report["by_outcome"][kind] for kind in ("false SAFE", "false UNSAFE", "missing"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
