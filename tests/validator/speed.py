"""How long the validator takes, recorded: ``python -m tests.validator.speed PART... --record FILE``.

processes   `amk verify` as a whole process: seconds of the processor (user and system) and of the clock, peak memory
edits       the verdict after one edit of a step, share or ring, with the results for the plan at hand, and cold;
            milliseconds of the processor, median and worst of `--seeds` edits of each kind
witnesses   `amk verify --witness` as a process on a race of llama3-8b with all of its 32 layers in the flat system
growth      the flat check on 1,000 to 1,000,000 events, and the composed one on 8 to 132 workers, with a plot

Times of the processor, because other work on the machine changes those of the clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from amk.adversary.edits import Edit, apply, steps
from amk.adversary.subjects import waits
from amk.bench.provenance import commit
from amk.planner.decode import plan
from amk.planner.settings import PRESETS
from amk.report.chart import Chart, Series, svg
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import save_schedule
from amk.schedule_ir.model import load_model
from amk.schedule_ir.schedule import Schedule
from amk.schedule_ir.target import load_target
from amk.validator.memo import Memo
from amk.validator.verify import verify
from tests.validator import growth
from tests.validator.one_edits import mutants

PLOT = Path(__file__).parents[2] / "amk" / "validator" / "growth.svg"
PROCESSES: dict[str, tuple[str, str, str, int | None]] = {
    "llama3-8b fast": ("llama3-8b", "h200", "fast", None),
    "llama3-8b naive": ("llama3-8b", "h200", "naive", None),
    "llama3-70b fast": ("llama3-70b", "b200", "fast", None),
    "llama3.1-8b fast, 131,072 positions": ("llama3.1-8b", "h200", "fast", 131_072),
}
"""model, target, plan, context."""
TIMES = 3
WORKERS = (8, 16, 33, 66, 132)


def planned(model: str, target: str, preset: str, context: int | None) -> Schedule:
    return plan(load_model(model), load_target(target), settings=PRESETS[preset], max_context=context)


def _process(command: list[str], code: int = 0) -> tuple[float, float, int]:
    """Seconds of the processor and of the clock, peak memory in KiB, of a process that exits with this code."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) == code, command
    return used.ru_utime + used.ru_stime, time.monotonic() - start, used.ru_maxrss


def processes() -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in PROCESSES.items():
            file = Path(folder) / "schedule.json"
            schedule = planned(*case)
            save_schedule(schedule, file)
            runs = [_process([sys.executable, "-m", "amk", "verify", str(file)]) for _ in range(TIMES)]
            cpu, wall = sorted(r[0] for r in runs), sorted(r[1] for r in runs)
            found[name] = {
                "model": case[0], "target": case[1], "context": schedule.kv.context,
                "cpu_s": [round(t, 3) for t in (cpu[0], median(cpu), cpu[-1])],
                "wall_s": [round(t, 3) for t in (wall[0], median(wall), wall[-1])],
                "peak_mib": round(max(r[2] for r in runs) / 1024),
            }  # fmt: skip
    return found


def witnesses() -> dict[str, Any]:
    """`amk verify --witness` on llama3-8b with a race and layers that cannot stand for each other, so that all 32 are
    in the flat system: a hint waits for more in later layers, and the barrier in front of one step is missing.
    """
    document = json.loads(planned("llama3-8b", "h200", "fast", None).model_dump_json())
    hint = next(path for path, wait in waits(document) if wait["order"] == "relaxed")
    staged = next(path for path, step in steps(document) if step["op"]["op"] == "stage_norm")
    edits = [
        Edit("replace", (*hint, "at_least"), {"t": 132, "l": 1, "1": 1}),
        Edit("remove", (*staged[:-1], int(staged[-1]) + 1)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        file, witness = Path(folder) / "schedule.json", Path(folder) / "witness.json"
        file.write_text(json.dumps(apply(document, edits)[0]))
        command = [sys.executable, "-m", "amk", "verify", str(file), "--witness", str(witness)]
        runs = [_process(command, 1) for _ in range(TIMES)]
        return {
            "cpu_s": sorted(round(r[0], 2) for r in runs),
            "peak_mib": round(max(r[2] for r in runs) / 1024),
            "witness_mib": round(witness.stat().st_size / 2**20, 1),
            "kind": json.loads(witness.read_text())["witness"]["kind"],
            "events": len(json.loads(witness.read_text())["system"]["event_tag"]),
        }


def _said(schedule: Schedule, memo: Memo | None) -> str:
    try:
        return verify(schedule, memo=memo).status
    except AmkError:
        return "malformed"


def _clocked(text: str, memo: Memo | None) -> tuple[float, str]:
    """(milliseconds of the processor, what was said) of a schedule that nobody has seen."""
    schedule = Schedule.model_validate_json(text)
    start = time.process_time()
    said = _said(schedule, memo)
    return round(1000 * (time.process_time() - start), 1), said


def _warm(text: str, plan: Schedule) -> tuple[float, str]:
    """The same with the plan's results at hand and nothing else, as a process has that goes on."""
    memo = Memo()
    for _ in range(2):
        verify(plan, memo=memo)
    gc.collect()
    return _clocked(text, memo)


def edits(seeds: int = 12, repeats: int = 3) -> dict[str, Any]:
    """Per plan and kind: [median, worst] over the seeds, in milliseconds, with the plan's results at hand and cold.

    Every edit is one of the plan itself, and results of other edits are not at hand. Other work on the machine makes
    the same work take more time of the processor, so each edit is measured `repeats` times and the best one counts.
    """
    found: dict[str, Any] = {}
    for preset in ("fast", "naive"):
        document = json.loads(planned("llama3-8b", "h200", preset, None).model_dump_json())
        rows: dict[str, list[tuple[float, float, str]]] = {}
        first = Schedule.model_validate_json(json.dumps(document))
        for kind, change in (one for seed in range(1, seeds + 1) for one in mutants(document, seed, 1)):
            text = json.dumps(apply(document, change)[0])
            runs = [_warm(text, first) for _ in range(repeats)]
            cold, again = _clocked(text, None)
            assert {said for _, said in runs} == {again}, (preset, kind, change)
            rows.setdefault(kind, []).append((min(runs)[0], cold, again))
        found[preset] = {kind: _summary(many) for kind, many in rows.items()}
        every = [row for many in rows.values() for row in many]
        found[preset]["all"] = _summary(every)
        found[preset]["all SAFE"] = _summary([row for row in every if row[2] == "SAFE"])
    return found


def _summary(rows: list[tuple[float, float, str]]) -> dict[str, Any]:
    warm, cold = [r[0] for r in rows], [r[1] for r in rows]
    said = [r[2] for r in rows]
    return {
        "warm_ms": [round(median(warm), 1), max(warm)] if rows else [],
        "cold_ms": [round(median(cold), 1), max(cold)] if rows else [],
        "over_100_ms": sum(w > 100 for w in warm),
        "verdicts": {s: said.count(s) for s in sorted(set(said))},
    }


def _composed() -> list[dict[str, Any]]:
    found = []
    for workers in WORKERS:
        schedule = plan(
            load_model("llama3-8b"), load_target("h200"), settings=replace(PRESETS["naive"], workers=workers)
        )
        runs = []
        for _ in range(3):
            start = time.process_time()
            nodes = verify(schedule).stats["nodes"]
            runs.append(time.process_time() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        best, worst = round(min(runs), 4), round(max(runs), 4)
        found.append({"workers": workers, "events": nodes, "cpu_s": best, "cpu_s_worst": worst, "mib": round(peak)})
    return found


def grown() -> dict[str, Any]:
    flat, composed = growth.points(growth.PHASES, 1), _composed()
    PLOT.write_text(_plot(flat, composed) + "\n", encoding="utf-8")
    ends = {
        "flat": round(growth.slope(flat[0], flat[-1]), 3),
        "flat, memory": round(growth.slope(flat[0], flat[-1], "mib"), 3),
        "composed": round(growth.slope(composed[0], composed[-1]), 3),
    }
    return {"flat": flat, "composed, llama3-8b naive": composed, "slopes": ends}


def _plot(flat: list[dict[str, Any]], composed: list[dict[str, Any]]) -> str:
    def series(name: str, points: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> Series:
        return Series(name, tuple((float(p["events"]), value(p)) for p in points))

    def each(point: dict[str, Any]) -> float:
        return 1e6 * float(point["cpu_s"]) / float(point["events"])

    def memory(point: dict[str, Any]) -> float:
        return 1024 * float(point["mib"]) / float(point["events"])

    cpu = (series("flat systems", flat, each), series("llama3-8b, 8 to 132 workers", composed, each))
    return svg(
        (
            Chart("processor time per event", "events", "microseconds", cpu, x_log=True),
            Chart(
                "peak memory per event, interpreter included", "events", "KiB",
                (series("flat systems", flat[1:], memory),), x_log=True,
            ),
        )
    )  # fmt: skip


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "processes": lambda _: processes(),
    "edits": lambda options: edits(options.seeds, options.repeats),
    "growth": lambda _: grown(),
    "witnesses": lambda _: witnesses(),
}


def _chosen(part: str, options: argparse.Namespace) -> list[str]:
    return ["--seeds", str(options.seeds), "--repeats", str(options.repeats)] if part == "edits" else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=12, help="edits of each kind")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each edit, of which the best counts")
    options = parser.parse_args()
    record = json.loads(options.record.read_text()) if options.record.exists() else {"format": 1}
    for part in options.parts:
        run = {
            "command": shlex.join(["python", "-m", "tests.validator.speed", part, *_chosen(part, options)]),
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "hardware": f"{os.cpu_count()} cores, {platform.machine()}, no GPU",
        }
        record[part] = {"run": run, **PARTS[part](options)}
        options.record.write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps(record[part], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
