"""The picture of the architecture: what becomes of a model, as boxes and arrows."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 760, 250
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f;text-anchor:middle}.note{font-size:11px;fill:#57606a}"
    ".box{fill:#f6f8fa;stroke:#8c959f}.data{fill:#ddf4ff;stroke:#54aeff}.judge{fill:#dafbe1;stroke:#4ac26b}"
    "path{stroke:#57606a;fill:none}.tip{fill:#57606a;stroke:none}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#8d96a0}.box{fill:#161b22;stroke:#6e7681}"
    ".data{fill:#0c2d6b;stroke:#388bfd}.judge{fill:#04260f;stroke:#2ea043}path{stroke:#8d96a0}.tip{fill:#8d96a0}}"
)


class Box(NamedTuple):
    kind: str
    x: int
    y: int
    title: str
    note: str


WIDE, HIGH = 132, 46
BOXES = {
    "model": Box("data", 6, 20, "model + GPU", "JSON descriptions"),
    "planner": Box("box", 158, 20, "planner", "chooses a schedule"),
    "schedule": Box("data", 310, 20, "schedule.json", "steps, waits, rings"),
    "lowering": Box("box", 462, 20, "lowering", "prints CUDA"),
    "kernel": Box("data", 622, 20, "kernel", "cooperative launch"),
    "agent": Box("box", 158, 112, "agent loop", "proposes, measures"),
    "validator": Box("judge", 310, 112, "validator", "three verdicts"),
    "readback": Box("judge", 462, 112, "read-back", "PTX against schedule"),
    "emulator": Box("judge", 622, 112, "emulator", "runs PTX on a CPU"),
    "checker": Box("judge", 310, 196, "checker", "repeats the proof"),
    "admission": Box("judge", 462, 196, "admission", "ties code to proof"),
}
ARROWS = (
    ("model", "planner"),
    ("planner", "schedule"),
    ("schedule", "lowering"),
    ("lowering", "kernel"),
    ("schedule", "validator"),
    ("validator", "agent"),
    ("agent", "planner"),
    ("validator", "checker"),
    ("lowering", "readback"),
    ("readback", "admission"),
    ("checker", "admission"),
    ("kernel", "emulator"),
)


def svg() -> str:
    boxes = "".join(map(_box, BOXES.values()))
    arrows = "".join(_arrow(BOXES[a], BOXES[b]) for a, b in ARROWS)
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    tip = (
        '<marker id="t" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style><defs>{tip}</defs>'
        f"{arrows}{boxes}</svg>\n"
    )


def _box(box: Box) -> str:
    middle = box.x + WIDE / 2
    return (
        f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{WIDE}" height="{HIGH}" rx="6"/>'
        f'<text x="{middle}" y="{box.y + 20}">{escape(box.title)}</text>'
        f'<text class="note" x="{middle}" y="{box.y + 36}">{escape(box.note)}</text>'
    )


def _arrow(a: Box, b: Box) -> str:
    """Along a row or a column, from edge to edge."""
    if a.y == b.y:
        right = a.x < b.x
        start, end = (a.x + WIDE, b.x) if right else (a.x, b.x + WIDE)
        return f'<path d="M{start} {a.y + HIGH / 2}H{end}" marker-end="url(#t)"/>'
    down = a.y < b.y
    start, end = (a.y + HIGH, b.y) if down else (a.y, b.y + HIGH)
    return f'<path d="M{a.x + WIDE / 2} {start}V{end}" marker-end="url(#t)"/>'
