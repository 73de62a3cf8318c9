"""Tokens a second against the probability that a guess is right, for steps of 1 to 8 rows, as SVG."""

from __future__ import annotations

from html import escape
from typing import Any

from tests.readme import quoted

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 360, 52, 12, 64, 40
MOST_ROWS, TICKS = 8, 5
GRID = 400
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}path{fill:none;stroke:#8c959f}"
    ".grid{stroke:#d0d7de;stroke-width:.5}"
    ".own{stroke:#1a7f37;stroke-width:2}.lookup{fill:#1a7f37}.draft{fill:#cf222e}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}path{stroke:#6e7681}.grid{stroke:#30363d}"
    ".own{stroke:#3fb950}.lookup{fill:#3fb950}.draft{fill:#ff7b72}}"
)
LOOKUP, DRAFT = "speed/cpu-smollm2.json", "speed/cpu-smollm2-drafts.json"
MEASURED = "speed/h200-guesses.json"
LOOKUPS = ("chat, planets", "code, continued", "prose, continued")
DRAFTS = ("chat, planets", "code, continued")


def tokens(rows: int, right: float) -> float:
    """Tokens of a step of so many rows, where a guess behind right ones is right with this probability."""
    return sum(right**row for row in range(rows))


def probability(rows: int, count: float) -> float:
    """At which a step of so many rows gives so many tokens."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens(rows, middle) < count else (low, middle)
    return low


def times() -> dict[int, float]:
    """Milliseconds of a step of llama3-8b at position 512 by its rows. One of 2 to 8 rows is one of 8, in which those
    without a guess are not counted."""
    steps = quoted.record("speed/h200-divided-columns.json")["runs"][quoted.ROWS]["steps"]
    found = {step["plan"]: step["ms"] for step in steps if step["model"] == "llama3-8b" and step["pos"] == 512}
    return {rows: found["rows 1" if rows == 1 else "rows 8"] for rows in range(1, MOST_ROWS + 1)}


def measured() -> list[tuple[str, str, int, float]]:
    """Kind, text, rows a pass and tokens a pass of the real checkpoint."""
    lookups = _numbers(LOOKUP, "test_smollm2_evidence")
    drafts = _numbers(DRAFT, "test_smollm2_together")["test_drafts[greedy-its weights rounded to int4-g128]"]
    found = [("lookup", text, 8, float(lookups[f"test_speculation[7-{text}]"]["tokens_a_pass"])) for text in LOOKUPS]
    return [*found, *(("draft", text, 5, float(drafts[text]["tokens_a_pass"])) for text in DRAFTS)]


def _numbers(record: str, test: str) -> dict[str, Any]:
    numbers: dict[str, Any] = quoted.record(record)["files"][f"tests/engine/{test}.py"]["numbers"]
    return numbers


def table() -> str:
    """What steps of 8 rows measured on a GPU, against steps of one row, by the share of guesses that is right."""
    runs = [run for run in quoted.record(MEASURED)["runs"] if any(row["rows"] == MOST_ROWS for row in run["rows"])]
    cells: dict[float, dict[str, dict[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: run["model"], reverse=True):
        for row in run["rows"]:
            if row["rows"] == MOST_ROWS:
                name = f"{run['model']}, {'launch' if row['steps'] else 'host'}"
                cells.setdefault(row["right"], {})[name] = row
    names = list(next(iter(cells.values())))
    lines = [f"| guesses right | tokens a step | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for right, found in sorted(cells.items()):
        steps = f"{found[names[0]]['a_step']:.2f}"
        times = (f"{row['each_ms']:.3f} ({row['faster']:.2f}x)" for row in (found[name] for name in names))
        lines.append(f"| {right:.0%} | {steps} | {' | '.join(times)} |")
    return "\n".join(lines) + "\n"


def svg() -> str:
    ms = times()
    top = GRID * TICKS

    def at(right: float, speed: float) -> tuple[float, float]:
        across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + right * across, TOP + (1 - speed / top) * down

    parts = []
    for tick in range(TICKS + 1):
        share = tick / TICKS
        (left, y), (end, _), (x, floor) = at(0, top * share), at(1, 0), at(share, 0)
        parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{end:.1f}M{x:.1f} {TOP}V{floor:.1f}"/>')
        parts.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{top * share:.0f}</text>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 16:.1f}" text-anchor="middle">{share:.1f}</text>')
    for rows, step in ms.items():
        points = [at(n / 50, 1000 * tokens(rows, n / 50) / step) for n in range(51)]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        x, y = points[-1]
        parts.append(f'<path class="{"own" if rows in (1, MOST_ROWS) else ""}" d="M{line}"/>')
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 4:.1f}">{rows} row{"s" * (rows > 1)}</text>')
    for kind, text, rows, each in measured():
        x, y = at(probability(rows, each), 1000 * each / ms[rows])
        anchor, shift = ("end" if x > WIDTH / 3 else "start", -10) if kind == "lookup" else ("start", 18)
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        name = escape(f"{kind}: {text}")
        parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y + shift:.1f}" text-anchor="{anchor}">{name}</text>')
    caption = "probability that a guess is right"
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{caption}</text>')
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{"".join(parts)}</svg>\n'
