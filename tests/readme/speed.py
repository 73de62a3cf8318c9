"""The table and the chart of speed. Each number is read from a record; the chart repeats numbers of the table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from amk.targets.target import load_target
from tests.readme import records
from tests.readme.bars import Bar, Group

RECORDS = Path(__file__).parents[1] / "records" / "speed"
TABLES = ("h200-table.json",)
"""The first gives amk's own column; the others add baselines that it lacks, each paired with amk in its own run."""

NAMES = {
    "pdl-graph": "our tiles as separate kernels",
    "cublas-graph": "torch ops in a CUDA graph",
    "compile": "torch.compile",
    "int8": "torch.compile, int8 product",
    "int4": "torch.compile, tinygemm",
    "fp8": "torch.compile, scaled product",
}
IN_BF16 = ("compile", "cublas-graph")
"""Baselines whose weights are bf16 in the row of every format. What torch.compile makes differs between processes."""
CHART = (("llama3.2-1b", "bf16", 128, 1), ("llama3.2-1b", "int8", 128, 1), ("llama3-8b", "bf16", 128, 1))

Case = tuple[str, str, int, int]
"""Model, weight format, position, batch."""


@dataclass(frozen=True)
class Line:
    """One case: medians of amk in ms, floor in ms, and for each baseline its ms and its ratio to amk: in the same run,
    or to the median of amk where the fastest of all processes counts."""

    case: Case
    own: tuple[float, ...]
    floor: float
    baselines: dict[str, tuple[float, float]]
    agreed: bool

    @property
    def ms(self) -> float:
        return median(self.own)


def lines(files: Iterable[Path]) -> list[Line]:
    """The cases of the first file, with the baselines that any file has for them."""
    rows = [_rows(file) for file in files]
    return [_line(case, mine, rows) for case, mine in rows[0].items()]


def _rows(file: Path) -> dict[Case, list[dict[str, Any]]]:
    found: dict[Case, list[dict[str, Any]]] = {}
    for entry in json.loads(file.read_text(encoding="utf-8"))["rows"]:
        key = entry["row"]["key"]
        found.setdefault((key["model"], key["dtype"], key["pos"], key["batch"]), []).append(entry["row"])
    return found


def _line(case: Case, mine: list[dict[str, Any]], rows: list[dict[Case, list[dict[str, Any]]]]) -> Line:
    baselines: dict[str, list[tuple[float, float]]] = {}
    for table in rows:
        found: dict[str, list[tuple[float, float]]] = {}
        for row in table.get(case, []):
            for name, times in row["baselines"].items():
                found.setdefault(name, []).append((times["ms"], times["ms"] / row["times"]["ms"]))
        baselines = found | baselines
    times = tuple(row["times"]["ms"] for row in mine)
    medians = {n: (median(ms for ms, _ in v), median(r for _, r in v)) for n, v in baselines.items()}
    fastest = {n: (ms, ms / median(times)) for n, ms in _fastest(case, rows).items() if n in medians}
    return Line(
        case,
        times,
        median(_floor(row) for row in mine),
        medians | fastest,
        all(row["correct"] and row["argmax_agrees"] for row in mine),
    )


def _fastest(case: Case, rows: list[dict[Case, list[dict[str, Any]]]]) -> dict[str, float]:
    """ms of torch with bf16 weights at this position, in the fastest process of any format's row."""
    found: dict[str, float] = {}
    for table in rows:
        for (model, _, pos, batch), entries in table.items():
            if (model, pos, batch) == (case[0], case[2], case[3]):
                for name, times in ((n, t) for row in entries for n, t in row["baselines"].items() if n in IN_BF16):
                    found[name] = min(times["ms"], found.get(name, times["ms"]))
    return found


def _floor(row: dict[str, Any]) -> float:
    """ms: the bytes of a step that the L2 cannot hold, at the read rate of the same run."""
    far: int = row["bytes"] - load_target(row["key"]["gpu"]).l2_bytes
    return max(0, far) / row["ceiling_gbps"] / 1e6


def table() -> str:
    """Markdown: a row per case, with the strongest baseline that is not ours."""
    head = "| model, weights, position | floor | amk | least, most | strongest torch | separate kernels |\n"
    return head + "|---|---|---|---|---|---|\n" + "".join(map(_markdown, lines(RECORDS / f for f in TABLES)))


def _markdown(line: Line) -> str:
    own = f"**{line.ms:.3f}**" + ("" if line.agreed else " (argmax differs from fp64)")
    spread = f"{min(line.own):.3f}, {max(line.own):.3f}"
    cells = [title(line.case), f"{line.floor:.3f}", own, spread, strongest_torch(line), _beside(line, "pdl-graph")]
    return "| " + " | ".join(cells) + " |\n"


def strongest_torch(line: Line) -> str:
    """The fastest baseline that is not ours: ms, its ratio to amk, and which it is."""
    torch = {n: v for n, v in line.baselines.items() if n != "pdl-graph"}
    return _beside(line, min(torch, key=lambda n: torch[n][0], default=None))


def _beside(line: Line, name: str | None) -> str:
    if name is None or name not in line.baselines:
        return "-"
    ms, ratio = line.baselines[name]
    return f"{ms:.3f} ({ratio:.2f}x)" + ("" if name == "pdl-graph" else f" {_named(line, name)}")


def _named(line: Line, name: str) -> str:
    """A baseline, with the format of its weights where that is not the row's."""
    return NAMES[name] + (" (bf16)" if line.case[1] != "bf16" and name in IN_BF16 else "")


def title(case: Case) -> str:
    model, dtype, pos, batch = case
    return f"{model} {dtype}, {pos:,}" + (f", batch {batch}" if batch > 1 else "")


def groups() -> list[Group]:
    """The cases of the chart: the floor, amk and every baseline, in ms per token."""
    by_case = {line.case: line for line in lines(RECORDS / f for f in TABLES)}
    return [_group(by_case[case]) for case in CHART]


def _group(line: Line) -> Group:
    others = sorted((ms, _named(line, name)) for name, (ms, _) in line.baselines.items())
    bars = [Bar("amk", line.ms, "own"), *(Bar(name, ms, "other") for ms, name in others)]
    return Group(f"{line.case[0]} {line.case[1]}", line.floor, tuple(bars))


def section() -> str:
    """The table, and what each row was measured on. Says so if kernels have changed since. ValueError if a row was not
    as exact as torch, or not repeated bitwise."""
    mine = [claim for claim in records.claims() if claim.record in {f"speed/{name}" for name in TABLES}]
    later = (
        " Files of the kernels have changed since." if any(records.stale(claim) is not False for claim in mine) else ""
    )
    rows = json.loads((RECORDS / TABLES[0]).read_text(encoding="utf-8"))["rows"]
    if not all(entry["row"]["correct"] and entry["row"]["reproducible"] for entry in rows):
        raise ValueError("a wrong row in a record")
    return f"{table()}\n{source(rows)}{later}\n"


def source(rows: Iterable[dict[str, Any]]) -> str:
    """The cards with what they read, commit and day of most cases first, then those of the others with their names."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    cards: dict[tuple[str, str], set[str]] = {}
    for entry in rows:
        run, key = entry["run"], entry["row"]["key"]
        where = run["hardware"]["name"], f"commit {run['commit'][:7]}, {run['date'][:10]}"
        cards.setdefault(where, set()).add(run["hardware"].get("uuid", ""))
        case = title((key["model"], key["dtype"], key["pos"], key["batch"]))
        found.setdefault(where, {}).setdefault(case, []).append(entry["row"]["ceiling_gbps"])
    sentences = []
    for where, cases in sorted(found.items(), key=lambda each: -len(each[1])):
        ceiling = median(gbps for each in cases.values() for gbps in each)
        count = len(cards[where])
        name = f"one {where[0]}" if count == 1 else f"{count} {where[0]}s"
        card = f"{name}, {where[1]}, {'which reads' if count == 1 else 'each of which reads'} {ceiling:,.0f} GB/s."
        sentences.append(f"{'; '.join(cases)}: {card}" if sentences else f"{card[0].upper()}{card[1:]}")
    return " ".join(sentences)
