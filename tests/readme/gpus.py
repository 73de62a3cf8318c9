"""One page for each GPU: what limits it, what is predicted, what would refute that, and how to measure it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from amk.simulator.constants import stored
from amk.simulator.kinds import error_of_kind, named_kind, stored_errors
from amk.targets.target import Target, load_target, targets
from tests.readme import records
from tests.readme.speed import Line, lines, strongest_torch, title

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
    sentence = "Measured times follow." if measured(target.name) else "The table of README has what was measured."
    label = sentence if known else "No kernel has run on this GPU."
    text = [
        "## Prediction\n",
        f"{label} Simulated at position 128, batch 1, commit {recorded()['commit']}, {recorded()['date']}:\n",
        "| model, weights | floor, ms | simulated, ms | of the read ceiling | largest part beside reading weights |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        name = f"{row['model']} {row['format']}"
        if "ms" not in row:
            text.append(f"| {name} | - | - | - | not planned: {row['reason']} ({row['refused']}) |")
            continue
        second = next(part for part in row["parts"] if part != "memory")
        share = f"{row['floor_ms'] / row['ms']:.0%}"
        text.append(f"| {name} | {row['floor_ms']:.3f} | {row['ms']:.3f} | {share} | {WORDS[second]} |")
    fit = (named_kind(row["format"] == "bf16", 1, 128) for row in rows if "ms" in row)
    errors = dict.fromkeys(error_of_kind(target.name, kind) for kind in fit)
    return (
        "\n".join(
            [
                *text,
                "",
                *(f"* Error {each}." if each.startswith("of") else f"* {each.capitalize()}." for each in errors),
            ]
        )
        + "\n"
    )


def measured(gpu: str) -> list[Line]:
    """Cases that were measured on this GPU, if they are: the H200's stand in README."""
    path = records.RECORDS / "speed" / f"{gpu}-five-runs.json"
    return lines([path]) if path.exists() else []


def _measured(target: Target, predicted: list[dict[str, Any]]) -> str:
    """What was measured, beside the prediction. ValueError for a row whose result was wrong."""
    name = f"{target.name}-five-runs.json"
    rows = json.loads((records.RECORDS / "speed" / name).read_text(encoding="utf-8"))["rows"]
    if not all(each["row"]["correct"] and each["row"]["reproducible"] for each in rows):
        raise ValueError(f"a wrong row in {name}")
    run, cards = rows[0]["run"], {each["row"]["uuid"] for each in rows}
    ceilings = [each["row"]["ceiling_gbps"] for each in rows]
    header = (
        "model, weights, position", "floor, ms", "measured, ms", "least, most", "of the ceiling", "simulated", "off",
        "strongest torch",
    )  # fmt: skip
    text = [
        "## Measured\n",
        f"{len(cards)} {run['hardware']['name']}, commit {run['commit'][:7]}, {run['date'][:10]}, `amk bench`, "
        f"[record](../../../tests/records/speed/{name}).",
        "Medians of five runs of 50 launches. The floor has the read ceiling of the same run, "
        f"{min(ceilings):,.0f} to {max(ceilings):,.0f} GB/s.",
        "In each row the error against fp64 is below torch's and two runs are bitwise equal.",
        f"Simulated are the plans of {recorded()['commit']}, whose settings may differ from those that ran.\n",
        _row(header),
        "|---" * len(header) + "|",
    ]
    simulated = {(row["model"], row["format"], 128, 1): row["ms"] for row in predicted}
    return "\n".join(text + [_row(_cells(each, simulated.get(each.case))) for each in measured(target.name)]) + "\n"


def _cells(line: Line, simulated: float | None) -> list[str]:
    return [
        title(line.case) + ("" if line.agreed else " (argmax differs from fp64)"),
        f"{line.floor:.3f}",
        f"{line.ms:.3f}",
        f"{min(line.own):.3f}, {max(line.own):.3f}",
        f"{line.floor / line.ms:.0%}",
        *((f"{simulated:.3f}", f"{simulated / line.ms - 1:+.1%}") if simulated else ("-", "-")),
        strongest_torch(line),
    ]


def _drain(rows: list[dict[str, Any]]) -> str:
    text = [
        "## What limits it\n",
        f"{_limit(rows)}",
        f"An SM has to catch up after each wait, so it should drain resident chunks at least {CATCH_UP} times as",
        "fast as memory supplies them. The bound below counts machine instructions, four a clock:\n",
        "| model, weights | bytes a chunk | instructions a chunk | drain, GB/s an SM | supply, GB/s an SM | ratio |",
        "|---|---|---|---|---|---|",
    ]
    text += [
        f"| {row['model']} {row['format']} | {row['chunk_bytes']:,} | {row['instructions']} | {row['drain_gbps']:.0f} "
        f"| {row['supply_gbps']:.1f} | {row['ratio']:.1f} |"
        for row in rows
    ]
    slow = [f"{row['model']} {row['format']}" for row in rows if row["ratio"] < CATCH_UP]
    text += [f"\nBelow {CATCH_UP}, so that draining limits what follows a wait: {', '.join(slow)}."] if slow else []
    return "\n".join([*text, *_drained(rows[0]["gpu"])]) + "\n"


def _drained(gpu: str) -> list[str]:
    """What this GPU's code was measured to drain where weights lie in another one's L2."""
    record = json.loads(DRAINED.read_text(encoding="utf-8"))
    if not (rows := [row for row in record["rows"] if load_target(row["gpu"]).name == gpu]):
        return []
    run, there = record["run"], f"../../../tests/records/speed/{DRAINED.name}"
    times = ", ".join(f"{row['times_supply']:.1f} times in {row['format']}" for row in rows)
    where = f"the L2 of one {run['hardware']['name']}, {rows[0]['workers']} SMs"
    slow = [row["format"] for row in rows if row["times_supply"] < CATCH_UP]
    return [
        f"\nMeasured with weights in {where}, at the ratio of clocks:",
        f"{times} what memory supplies ([record]({there}), commit {run['commit'][:7]}).",
        *([f"That is below {CATCH_UP} in {', '.join(slow)}."] if slow else []),
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
