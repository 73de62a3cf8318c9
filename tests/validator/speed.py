"""How long the validator takes, recorded: ``python -m tests.validator.speed PART... --record FILE``.

processes   `amk verify` as a whole process: seconds of the processor (user and system) and of the clock, peak memory
columns     `amk verify`, the same with a certificate, and its check, as processes on steps of llama3-8b with 1 to 16
            columns: sequences with one position, with their own, rows of one sequence
verdicts    verdicts within a process, and the certificate of llama3-8b with its check
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
from amk.bench.tools.provenance import commit
from amk.checker.certificate import check_certificate
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST, PRESETS
from amk.report.chart import Chart, Series, svg
from amk.schedule_ir.codec import save_schedule, schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from tests.validator import growth

PLOT = Path(__file__).parents[2] / "amk" / "validator" / "growth.svg"
PROCESSES: dict[str, tuple[str, str, str, int | None]] = {
    "llama3-8b fast": ("llama3-8b", "h200", "fast", None),
    "llama3-8b naive": ("llama3-8b", "h200", "naive", None),
    "llama3-70b fast": ("llama3-70b", "b200", "fast", None),
    "llama3.1-8b fast, 131,072 positions": ("llama3.1-8b", "h200", "fast", 131_072),
}
"""model, target, plan, context."""
COLUMNS = {
    "1 sequence": FAST,
    "8 sequences": replace(FAST, batch=8),
    "16 sequences": replace(FAST, batch=16),
    "16 sequences, each at a position of its own": replace(FAST, batch=16, live=True),
    "16 rows of a sequence": replace(FAST, rows=16),
}
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


def columns() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file, certificate = str(Path(folder) / "schedule.json"), str(Path(folder) / "certificate.json")
        amk = [sys.executable, "-m", "amk"]
        for name, settings in COLUMNS.items():
            save_schedule(plan(load_model("llama3-8b"), load_target("h200"), settings=settings), Path(file))
            commands = {
                "verify": [*amk, "verify", file],
                "verify and certify": [*amk, "verify", file, "--certificate", certificate],
                "check": [*amk, "check-certificate", file, certificate],
            }
            found[name] = {}
            for what, command in commands.items():
                runs = [_process(command) for _ in range(TIMES)]
                cpu = [round(run[0], 2) for run in sorted(runs)]
                found[name][what] = {"cpu_s": cpu, "peak_mib": round(max(run[2] for run in runs) / 1024)}
    return found


def witnesses() -> dict[str, Any]:
    """`amk verify --witness` on llama3-8b with a race and layers that cannot stand for each other, so that all 32 are
    in the flat system: a hint waits for more in later layers, and a barrier behind one step is missing.
    """
    document = json.loads(planned("llama3-8b", "h200", "fast", None).model_dump_json())
    hint = next(path for path, wait in waits(document) if wait["order"] == "relaxed")
    ops = [(path, step["op"]["op"]) for path, step in steps(document)]
    staged = next(n for n, (_, op) in enumerate(ops) if op == "stage_norm")
    barrier = next(path for path, op in ops[staged:] if op == "barrier")
    edits = [
        Edit("replace", (*hint, "at_least"), {"t": 132, "l": 1, "1": 1}),
        Edit("remove", barrier),
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


def verdicts() -> dict[str, Any]:
    """Cold verdicts within a process that has loaded everything, and a certificate with its check."""
    found: dict[str, Any] = {}
    for model, target, preset, context in PROCESSES.values():
        schedule, runs = planned(model, target, preset, context), []
        for _ in range(TIMES):
            gc.collect()
            start = time.process_time()
            status = verify(schedule).status
            runs.append(time.process_time() - start)
        found[f"{model}, {target}, {preset}, {schedule.kv.context} positions"] = {
            "status": status,
            "cpu_s": [round(t, 3) for t in sorted(runs)],
        }
    schedule = planned("llama3-8b", "h200", "fast", None)
    start = time.process_time()
    certificate = json.loads(json.dumps(certify_schedule(schedule, checked=False)))
    begin_of_check = time.process_time()
    reason = check_certificate(schedule, schedule_hash(schedule), certificate).reason
    seconds = {
        "make_s": round(begin_of_check - start, 2),
        "check_s": round(time.process_time() - begin_of_check, 2),
        "refused": reason,
    }
    return found | {"certificate of llama3-8b": seconds}


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


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "processes": processes,
    "columns": columns,
    "verdicts": verdicts,
    "growth": grown,
    "witnesses": witnesses,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args()
    record = json.loads(options.record.read_text()) if options.record.exists() else {"format": 1}
    for part in options.parts:
        run = {
            "command": shlex.join(["python", "-m", "tests.validator.speed", part]),
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "hardware": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, no GPU",
        }
        record[part] = {"run": run, **PARTS[part]()}
        options.record.write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps(record[part], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
