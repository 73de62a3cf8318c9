"""Horizontal bar charts as SVG that read well on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH, LABEL, RIGHT = 760, 240, 64
ROW, GAP, HEAD = 22, 16, 26
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.own{fill:#1a7f37}.other{fill:#8c959f}"
    ".floor{stroke:#cf222e;stroke-width:1.5;stroke-dasharray:4 3}.note{font-size:11px;fill:#57606a}"
    ".head{font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.own{fill:#3fb950}.other{fill:#6e7681}"
    ".floor{stroke:#ff7b72}.note{fill:#8d96a0}}"
)


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    kind: Literal["own", "other"]


@dataclass(frozen=True)
class Group:
    """Bars that are compared with each other and with one bound."""

    title: str
    bound: float
    bars: tuple[Bar, ...]


def svg(groups: Sequence[Group], unit: str, bound: str) -> str:
    """One chart for each group, each on its own scale. unit: of the values; bound: what the dashed line is."""
    parts, y = [], 0
    for group in groups:
        drawn, height = _group(group, y, unit)
        parts.append(drawn)
        y += height + GAP
    note = f"dashed line: {escape(bound)}; each group has its own scale"
    parts.append(f'<text class="note" x="0" y="{y + 4}">{note}</text>')
    size = f'width="{WIDTH}" height="{y + 14}" viewBox="0 0 {WIDTH} {y + 14}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{"".join(parts)}</svg>\n'


def _group(group: Group, top: int, unit: str) -> tuple[str, int]:
    scale = (WIDTH - LABEL - RIGHT) / max(bar.value for bar in group.bars)
    parts = [f'<text class="head" x="0" y="{top + 16}">{escape(group.title)}</text>']
    for i, bar in enumerate(group.bars):
        y, long = top + HEAD + i * ROW, bar.value * scale
        parts.append(
            f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(bar.name)}</text>'
            f'<rect class="{bar.kind}" x="{LABEL}" y="{y + 2}" width="{long:.1f}" height="{ROW - 6}" rx="2"/>'
            f'<text x="{LABEL + long + 6:.1f}" y="{y + 14}">{bar.value:.2f} {escape(unit)}</text>'
        )
    height = HEAD + len(group.bars) * ROW
    x = LABEL + group.bound * scale
    parts.append(f'<line class="floor" x1="{x:.1f}" y1="{top + HEAD - 2}" x2="{x:.1f}" y2="{top + height}"/>')
    return "".join(parts), height
