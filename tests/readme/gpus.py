"""One page for each GPU: what limits it, what is predicted, what would refute that, and how to measure it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from amk.simulator.constants import stored
from amk.simulator.kinds import stored_errors
from amk.targets.target import Target, load_target, targets
from tests.readme import records

RECORD = records.RECORDS / "speed" / "gpus-simulated.json"
DRAINED = records.RECORDS / "speed" / "h200-drain-resident.json"
PAGES = records.ROOT / "amk" / "simulator" / "gpus"
CATCH_UP = 3

WORDS = {
    "memory": "reading weights from memory", "drain": "draining the ring", "cache": "reading the KV cache",
    "waiting": "waiting for other SMs", "hand-off": "publishing results", "staging": "staging vectors",
    "arithmetic": "arithmetic outside of products", "barrier": "barriers",
}  # fmt: skip
"""What the simulator's parts of a step are."""


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def page(gpu: str) -> str:
    target = load_target(gpu)
    rows = [row for row in recorded()["rows"] if row["gpu"] == gpu]
    fit = [row for row in rows if "ms" in row]
    parts = [_head(target), _predicted(target, rows)]
    parts += [_measured(target, fit)] if measured(gpu) else []
    parts += [_drain(fit), _refuted(target, fit), _command(target)] if fit else []
    return "\n".join(parts)


def _head(target: Target) -> str:
    clock = next((p.mhz for p in stored().published if p.target == target.name), None)
    measured = "measured" if target.read_ceiling_measured else "assumed"
    cells = {
        "architecture": target.arch,
        "SMs": str(target.sms),
        "memory": f"{target.hbm_bytes / (1 << 30):.1f} GiB",
        "read ceiling": f"{target.read_ceiling_gbps:,.0f} GB/s, {measured}",
        "L2": f"{target.l2_bytes / (1 << 20):.0f} MiB",
        "shared memory of a block": f"{target.smem_per_block / 1024:.0f} KiB",
        "boost clock": f"{clock:,.0f} MHz" if clock else "-",
    }
    return f"# {target.title}\n\n{_row(cells)}\n{'|---' * len(cells)}|\n{_row(cells.values())}\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _predicted(target: Target, rows: list[dict[str, Any]]) -> str:
    known = target.name in stored_errors().kinds
    told = "Measured times follow." if measured(target.name) else "The table of README has what was measured."
    label = told if known else "No kernel has run on this GPU."
    lines = [
        "## Prediction\n",
        f"{label} Simulated at position 128, batch 1, commit {recorded()['commit']}, {recorded()['date']}:\n",
        "| model, weights | floor, ms | simulated, ms | of the read ceiling | largest part beside reading weights |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        name = f"{row['model']} {row['format']}"
        if "ms" not in row:
            lines.append(f"| {name} | - | - | - | not planned: {row['reason']} ({row['refused']}) |")
            continue
        second = next(part for part in row["parts"] if part != "memory")
        share = f"{row['floor_ms'] / row['ms']:.0%}"
        lines.append(f"| {name} | {row['floor_ms']:.3f} | {row['ms']:.3f} | {share} | {WORDS[second]} |")
    errors = dict.fromkeys(row["error"] for row in rows if "error" in row)
    return (
        "\n".join(
            [
                *lines,
                "",
                *(f"* Error {each}." if each.startswith("of") else f"* {each.capitalize()}." for each in errors),
            ]
        )
        + "\n"
    )


def measured(gpu: str) -> list[dict[str, Any]]:
    """Rows of the table that was measured on this GPU beside its prediction, if there is one."""
    path = records.RECORDS / "speed" / f"{gpu}-table.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if gpu != "h200" and path.exists() else []


def _measured(target: Target, predicted: list[dict[str, Any]]) -> str:
    """What was measured at position 128, beside the prediction of the same plan."""
    rows = measured(target.name)
    run, ceilings = rows[0]["run"], [each["row"]["ceiling_gbps"] for each in rows]
    header = (
        "model, weights, batch", "floor, ms", "measured, ms", "10th, 90th percentile", "of the ceiling",
        "simulated before", "off", "separate kernels",
    )  # fmt: skip
    lines = [
        "## Measured\n",
        f"One {run['hardware']['name']}, commit {run['commit']}, {run['date'][:10]}, "
        f"`{run['command'].split(' --')[0]}`, [record](../../../tests/records/speed/{target.name}-table.json).",
        "Medians of 50 launches. The floor has the read ceiling of the same run, "
        f"{min(ceilings):,.0f} to {max(ceilings):,.0f} GB/s.",
        "In each row the error against fp64 is below torch's and two runs are bitwise equal.\n",
        _row(header),
        "|---" * len(header) + "|",
    ]
    simulated = {(row["model"], row["format"]): row["ms"] for row in predicted}
    return "\n".join(lines + [_row(_cells(each["row"], simulated)) for each in rows]) + "\n"


def _cells(row: dict[str, Any], simulated: dict[tuple[str, str], float]) -> list[str]:
    """ValueError for a row whose result was wrong."""
    key, times = row["key"], row["times"]
    if not (row["correct"] and row["reproducible"]):
        raise ValueError(f"a wrong row in a record: {key}")
    ms = simulated.get((key["model"], key["dtype"])) if key["batch"] == 1 else None
    apart = row["baselines"].get("pdl-graph")
    return [
        f"{key['model']} {key['dtype']}, {key['batch']}{'' if row['argmax_agrees'] else ' (argmax differs from fp64)'}",
        f"{row['floor_ms']:.3f}",
        f"{times['ms']:.3f}",
        f"{times['p10']:.3f}, {times['p90']:.3f}",
        f"{row['floor_ms'] / times['ms']:.0%}",
        *((f"{ms:.3f}", f"{ms / times['ms'] - 1:+.1%}") if ms else ("-", "-")),
        f"{apart['ms']:.3f} ({apart['ms'] / times['ms']:.2f}x)" if apart else "-",
    ]


def _drain(rows: list[dict[str, Any]]) -> str:
    lines = [
        "## What limits it\n",
        f"{_limit(rows)}",
        f"An SM has to catch up after each wait, so it should drain resident chunks at least {CATCH_UP} times as",
        "fast as memory supplies them. The bound below counts machine instructions, four a clock:\n",
        "| model, weights | bytes a chunk | instructions a chunk | drain, GB/s an SM | supply, GB/s an SM | ratio |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['model']} {row['format']} | {row['chunk_bytes']:,} | {row['instructions']} | {row['drain_gbps']:.0f} "
        f"| {row['supply_gbps']:.1f} | {row['ratio']:.1f} |"
        for row in rows
    ]
    return "\n".join([*lines, *_drained(rows[0]["gpu"])]) + "\n"


def _drained(gpu: str) -> list[str]:
    """What this GPU's code was measured to drain where weights lie in another one's L2."""
    record = json.loads(DRAINED.read_text(encoding="utf-8"))
    if not (rows := [row for row in record["rows"] if load_target(row["gpu"]).name == gpu]):
        return []
    run, there = record["run"], f"../../../tests/records/speed/{DRAINED.name}"
    times = ", ".join(f"{row['times_supply']:.1f} times in {row['format']}" for row in rows)
    where = f"the L2 of one {run['hardware']['name']}, {rows[0]['workers']} SMs"
    return [
        f"\nMeasured with weights in {where}, at the ratio of clocks:",
        f"{times} what memory supplies ([record]({there}), commit {run['commit'][:7]}).",
    ]


def _limit(rows: list[dict[str, Any]]) -> str:
    shares = [row["floor_ms"] / row["ms"] for row in rows]
    low, high = min(shares), max(shares)
    if low > 0.9:
        return f"Memory bandwidth limits every row: the floor is {low:.0%} to {high:.0%} of the predicted time."
    worst = min(rows, key=lambda row: row["floor_ms"] / row["ms"])
    return (
        f"The floor is {low:.0%} to {high:.0%} of the predicted time; the row farthest from it is "
        f"{worst['model']} {worst['format']}, whose phases are too short to hide the waits between SMs."
    )


def _refuted(target: Target, rows: list[dict[str, Any]]) -> str:
    kinds = stored_errors().kinds
    error = max(kind.worst for name, kind in kinds["h200"].items() if "one sequence" in name)
    row = rows[-1]
    low, high = row["ms"] * (1 - error), row["ms"] * (1 + error)
    unknown = "" if target.name in kinds else " No error is known for this GPU; that one is the H200's."
    return (
        "## What would refute it\n\n"
        f"* A time below the floor: then the read ceiling ({target.read_ceiling_gbps:,.0f} GB/s) is too low.\n"
        f"* A time off by more than {error:.0%}, the worst error of a plan for one sequence on an H200: "
        f"for {row['model']} {row['format']} below {low:.3f} or above {high:.3f} ms.{unknown}\n"
        "* Another order of the rows, or another largest part in `amk trace --measure`.\n"
    )


def _command(target: Target) -> str:
    record = f"{target.name}.json"
    return (
        "## Measure it\n\n"
        f"    amk bench --model llama3-8b --gpu {target.name} --max-context 4096 --positions 128 --record {record}\n\n"
        f"`amk simulate --against {record}` compares the record with the prediction.\n"
        f"`amk calibrate --gpu {target.name} --micro micro.json` replaces assumed constants by measured ones.\n"
    )


def index() -> str:
    """Links to all pages."""
    links = [f"[{t.title.removeprefix('NVIDIA ')}](gpus/{t.name}.md)" for t in targets()]
    return "".join(" · ".join(links[n : n + 4]) + "\n" for n in range(0, len(links), 4))


def pages() -> dict[Path, str]:
    return {PAGES / f"{t.name}.md": t.name for t in targets()}
