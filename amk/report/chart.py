"""Line charts as SVG: series of points over a logarithmic or linear axis. No script; text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

WIDTH, HEIGHT = 800, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 230, 34, 46
CHARACTER = 7
"""Pixels of a character, rather too many."""
PALETTE = ("#2a7f3f", "#e45756", "#4c78a8", "#f2b134", "#b279a2", "#72b7b2", "#9d755d")
FLOOR = "#999999"
STYLE = (
    "text{fill:#24292f}.paper{fill:#fff}.grid{stroke:#e5e5e5}.axis{stroke:#666}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.grid{stroke:#30363d}"
    ".axis{stroke:#8d96a0}}"
)
"""For light and dark pages; lines of series are told apart on both."""


@dataclass(frozen=True)
class Series:
    """points: (x, y), x ascending. A bound is drawn dashed and grey."""

    name: str
    points: tuple[tuple[float, float], ...]
    bound: bool = False


@dataclass(frozen=True)
class Chart:
    """x_log: equal factors of x are equally far apart; an x of 0 then stands where 1 does. y starts at 0."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_log: bool = False


def svg(charts: Sequence[Chart]) -> str:
    """The charts one below the other, as one SVG file."""
    size = f'width="{WIDTH}" height="{HEIGHT * len(charts)}" viewBox="0 0 {WIDTH} {HEIGHT * len(charts)}"'
    parts = "".join(f'<g transform="translate(0,{HEIGHT * i})">{_group(c)}</g>' for i, c in enumerate(charts))
    style = 'font-family="system-ui,sans-serif" font-size="12"'
    paper = f'<style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{paper}{parts}</svg>\n'


def html(title: str, charts: Sequence[Chart]) -> str:
    """The charts as a page that needs nothing from outside."""
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    style = (
        "<style>:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:52rem}"
        "svg{max-width:100%}</style>"
    )
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>{style}'
    body = f"<h1>{escape(title)}</h1>{svg(charts)}"
    return f"<!doctype html><html lang=en><head>{policy}{head}</head><body>{body}</body></html>\n"


def _group(chart: Chart) -> str:
    across, up = _scales(chart)
    unit = _text(LEFT + 12 + CHARACTER * len(chart.title), 20, chart.y_label)
    parts = [_text(LEFT, 20, chart.title, weight="bold"), unit, _axes(chart, across, up)]
    colours = iter(PALETTE * (1 + len(chart.series) // len(PALETTE)))
    for i, series in enumerate(chart.series):
        colour = FLOOR if series.bound else next(colours)
        parts.append(_line(series, colour, across, up))
        y = TOP + 14 + 18 * i
        dash = ' stroke-dasharray="5 4"' if series.bound else ""
        x = WIDTH - RIGHT + 12
        parts.append(
            f'<line x1="{x}" y1="{y - 4}" x2="{x + 18}" y2="{y - 4}" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        parts.append(_text(x + 24, y, series.name))
    return "".join(parts)


Scale = Callable[[float], float]


def _scales(chart: Chart) -> tuple[Scale, Scale]:
    xs = [x for s in chart.series for x, _ in s.points] or [1.0]
    top = _round_up(max((y for s in chart.series for _, y in s.points), default=1.0))

    def place(x: float) -> float:
        return log10(max(x, 1.0)) if chart.x_log else x

    low, high = place(min(xs)), place(max(xs))
    wide = (high - low) or 1.0
    return (
        lambda x: LEFT + (WIDTH - LEFT - RIGHT) * (place(x) - low) / wide,
        lambda y: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / top,
    )


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 or 10 times a power of ten."""
    unit = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    return next((m * unit for m in (1, 2, 2.5, 5) if m * unit >= value), 10 * unit)


def _axes(chart: Chart, across: Scale, up: Scale) -> str:
    xs = sorted({x for s in chart.series for x, _ in s.points})
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    top = _round_up(max((y for s in chart.series for _, y in s.points), default=1.0))
    for i in range(6):
        y = top * i / 5
        parts.append(f'<line x1="{LEFT}" y1="{up(y):.1f}" x2="{right}" y2="{up(y):.1f}" class="grid"/>')
        parts.append(_text(LEFT - 6, up(y) + 4, f"{y:.3g}", anchor="end"))
    last = -1e9
    for x in xs:
        if across(x) - last < CHARACTER * len(f"{x:,.0f}") + 4:
            continue
        last = across(x)
        parts.append(f'<line x1="{last:.1f}" y1="{bottom}" x2="{last:.1f}" y2="{bottom + 4}" class="axis"/>')
        parts.append(_text(last, bottom + 18, f"{x:,.0f}", anchor="middle"))
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" class="axis"/>')
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, chart.x_label, anchor="middle"))
    return "".join(parts)


def _line(series: Series, colour: str, across: Scale, up: Scale) -> str:
    points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in series.points)
    dash = ' stroke-dasharray="5 4"' if series.bound else ""
    line = f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
    if series.bound:
        return line
    marks = "".join(
        f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"><title>'
        f"{escape(series.name)} at {x:,.0f}: {y:.4f}</title></circle>"
        for x, y in series.points
    )
    return line + marks


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'
