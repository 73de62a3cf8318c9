"""A timeline as one HTML file: style, script and data inside, nothing loaded from anywhere.

The data are a JSON block that the page's script reads; `<`, `>` and `&` in it are escaped, so that no name can end the
block. Tables and notes are plain HTML. A content security policy admits this script (by its hash) and no other source.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any

from amk.report.diagnostic import printable
from amk.report.timeline import KINDS, Cell, Table, Timeline

DIGITS = 4
"""Decimals of times in the page."""


def html(timeline: Timeline) -> str:
    """The page."""
    style, script = (_asset(name) for name in ("timeline_page.css", "timeline_page.js"))
    policy = content_policy()
    title = escape(printable(timeline.title))
    notes = "".join(f"<li>{escape(printable(note))}</li>" for note in timeline.notes)
    tables = "".join(_table(table) for table in timeline.tables)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
{style}</style></head>
<body>
<header><h1>{title}</h1><div id="tools"></div></header>
<div id="legend"></div>
<noscript><p>The drawing needs scripting; the tables below do not.</p></noscript>
<div id="view"><canvas id="canvas" tabindex="0" role="img" aria-label="{title}"></canvas>
<div id="tip" hidden></div></div>
<div id="status"></div>
<div id="panel"></div>
<ul id="notes">{notes}</ul>
<div id="tables">{tables}</div>
<script type="application/json" id="data">{_embedded(_data(timeline))}</script>
<script>{script}</script>
</body></html>
"""


def content_policy() -> str:
    """What a page that is, or holds, a timeline may load: its own style and this script."""
    digest = base64.b64encode(hashlib.sha256(_asset("timeline_page.js").encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _embedded(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(timeline: Timeline) -> dict[str, Any]:
    """Columns instead of objects, texts once: most of a page is spans."""
    texts: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(printable(value), len(texts))

    spans, arrows = timeline.spans, timeline.arrows
    columns = {
        "track": [span.track for span in spans],
        "start": [round(span.start, DIGITS) for span in spans],
        "end": [round(span.end, DIGITS) for span in spans],
        "kind": [KINDS.index(span.kind) for span in spans],
        "name": [text(span.name) for span in spans],
        "detail": [text(span.detail) for span in spans],
        "marked": [i for i, span in enumerate(spans) if span.marked],
    }
    links = {
        "source": [arrow.source for arrow in arrows],
        "target": [arrow.target for arrow in arrows],
        "name": [text(arrow.name) for arrow in arrows],
        "marked": [i for i, arrow in enumerate(arrows) if arrow.marked],
    }
    series = [
        {"name": printable(s.name), "unit": printable(s.unit)}
        | {"x": [round(at, DIGITS) for at, _ in s.points], "y": [round(value, DIGITS) for _, value in s.points]}
        for s in timeline.series
    ]
    return {
        "unit": printable(timeline.unit),
        "mark": printable(timeline.mark),
        "kinds": KINDS,
        "tracks": [[printable(track.group), printable(track.name)] for track in timeline.tracks],
        "spans": columns,
        "arrows": links,
        "series": series,
        "texts": list(texts),
    }


def _table(table: Table) -> str:
    number = [bool(table.rows) and not isinstance(cell, str) for cell in (table.rows or ((),))[0]]
    number += [False] * (len(table.header) - len(number))
    head = "".join(
        f'<th class="{"number" if right else "text"}">{escape(printable(cell))}</th>'
        for cell, right in zip(table.header, number, strict=False)
    )
    rows = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in table.rows)
    return f"<h2>{escape(printable(table.title))}</h2><table><tr>{head}</tr>{rows}</table>"


def _cell(cell: Cell) -> str:
    return f"<td>{escape(printable(cell))}</td>" if isinstance(cell, str) else f'<td class="number">{shown(cell)}</td>'


def shown(cell: Cell) -> str:
    """A cell as text: integers with separators, other numbers with four significant digits."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{round(cell, 9):,.4g}" if abs(cell) < 1000 else f"{cell:,.0f}"
