"""Verdict, time and memory of task graphs that Mirage's compiler wrote, and of each with events that ask for less.

    python -m tests.systems.time_task_graphs h100.json b200.json,adds=251 h100-4.json,per-request=153

Behind a file's name stands what it does not say (`amk import task-graph --help`). The files are not kept here: the
record has their digests and sizes, and README.md of the importers says what they are of. `control`: of so many events,
drawn by a seed, that wait for one trigger less than all, how many make the graph UNSAFE; the rest lose an order that
others give as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from amk.systems.importers.task_graph import NO_EVENT, task_graph
from amk.systems.verdict import judged
from tests.long_run import provenance

RUNS, CONTROLS = 3, 8
Json = dict[str, Any]


def timed(*words: str) -> tuple[str, Json]:
    """What a command of amk prints, and what it costs."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "amk", *words], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = status
    cpu = used.ru_utime + used.ru_stime
    return output, {"cpu_seconds": cpu, "seconds": time.perf_counter() - start, "mib": used.ru_maxrss / 1024}


def spread(runs: list[Json]) -> Json:
    """Median, least and most."""
    return {
        name: [round(n, 2) for n in (statistics.median(values), min(values), max(values))]
        for name in runs[0]
        for values in [[run[name] for run in runs]]
    }


def controls(graph: Json, adds: list[int], per_request: list[int]) -> Json:
    waited = {task["dependent_event"] for task in graph["all_tasks"]} - {NO_EVENT}
    events = [n for n, event in enumerate(graph["all_events"]) if event["num_triggers"] > 1 and n in waited]
    chosen = random.Random(29).sample(events, min(CONTROLS, len(events)))
    unsafe = 0
    for number in chosen:
        graph["all_events"][number]["num_triggers"] -= 1
        unsafe += judged(task_graph(graph, "control", adds, per_request).flat()).verdict == "UNSAFE"
        graph["all_events"][number]["num_triggers"] += 1
    return {"events": len(chosen), "UNSAFE": unsafe}


def options_of(argument: str) -> tuple[str, list[int], list[int]]:
    """File, types of tasks that add, types that write by request."""
    name, *said = argument.split(",")
    parts = [one.partition("=") for one in said]
    adds, per_request = ([int(number) for word, _, number in parts if word == key] for key in ("adds", "per-request"))
    return name, adds, per_request


def costs(argument: str, folder: Path) -> Json:
    """Of the commands: before this process has a graph of its own, whose memory a child would be counted with."""
    name, adds, per_request = options_of(argument)
    system = folder / "system.json"
    words = [f"--adds={number}" for number in adds] + [f"--per-request={number}" for number in per_request]
    imports, verifies, output = [], [], ""
    for _ in range(RUNS):
        imports.append(timed("import", "task-graph", name, "-o", str(system), *words)[1])
        output, cost = timed("verify", str(system))
        verifies.append(cost)
    return {
        "graph": Path(name).stem, "options": words, "verdict": output.split()[0],
        "import": spread(imports), "verify": spread(verifies),
    }  # fmt: skip


def found(argument: str) -> Json:
    name, adds, per_request = options_of(argument)
    content = Path(name).read_bytes()
    graph = json.loads(content)
    verdict = judged(task_graph(graph, name, adds, per_request).flat())
    return {
        "sha256": hashlib.sha256(content).hexdigest(),
        "tasks": len(graph["all_tasks"]), "graph_events": len(graph["all_events"]),
        "agents": verdict.system.block.agents, "events": verdict.system.block.events,
        "deterministic": verdict.deterministic, "control": controls(graph, adds, per_request),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="+", metavar="FILE[,adds=TYPE][,per-request=TYPE]")
    parser.add_argument("--record", type=Path, default=Path("tests/records/proof/mirage-task-graphs.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = [costs(argument, Path(folder)) for argument in options.graphs]
    cases = [case | found(argument) for case, argument in zip(cases, options.graphs, strict=True)]
    record = {"name": "task graphs of Mirage's compiler", "run": provenance(options.record), "cases": cases}
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    for case in cases:
        print(case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
