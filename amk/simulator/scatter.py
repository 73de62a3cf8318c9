"""Predicted over measured times as one SVG: a colour per model, the diagonal, and 10% on either side of it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import log

from amk.report.chart import STYLE
from amk.simulator.agreement import Agreement

SIZE, MARGIN = 640, 60
COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f2b134", "#72b7b2")
BAND = 0.1
ROOM = 1.15


def scatter(agreements: Mapping[str, Agreement]) -> str:
    """Both axes logarithmic, in ms per token."""
    times = [t for a in agreements.values() for _, m, p in a.pairs for t in (m, p)]
    low, high = min(times) / ROOM, max(times) * ROOM

    def place(measured: float, predicted: float) -> tuple[float, float]:
        across, up = (log(t / low) / log(high / low) for t in (measured, predicted))
        span = SIZE - 2 * MARGIN
        return MARGIN + span * across, SIZE - MARGIN - span * up

    lines = []
    for factor, dash in ((1.0, ""), (1 + BAND, "4"), (1 - BAND, "4")):
        (x1, y1), (x2, y2) = place(low, low * factor), place(high, high * factor)
        line = f'd="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke-dasharray="{dash or "none"}"'
        lines.append(f'<path {line} stroke="#888"/>')
    dots: list[str] = []
    title = "simulated over measured ms per token, both logarithmic; dashed: 10%"
    words: list[tuple[float, float, str]] = [(MARGIN, 20, title)]
    for n, (name, agreement) in enumerate(agreements.items()):
        colour = COLOURS[n % len(COLOURS)]
        for run, measured, predicted in agreement.pairs:
            x, y = place(measured, predicted)
            tip = f"<title>{escape(run)}: {measured:.4f} measured, {predicted:.4f} simulated</title>"
            dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">{tip}</circle>')
        rank = "" if agreement.spearman is None else f"Spearman {agreement.spearman:.3f}, "
        text = f"{name}: {rank}median error {100 * agreement.median_error:.1f}%"
        words.append((MARGIN, 40.0 + 16 * n, text))
        dots.append(f'<circle cx="{MARGIN - 12}" cy="{36 + 16 * n}" r="4" fill="{colour}"/>')
    for t in (low * ROOM, high / ROOM):
        x, y = place(t, t)
        words += [(x - 12, SIZE - MARGIN + 20.0, f"{t:.3g}"), (8.0, y, f"{t:.3g}")]
    texts = "".join(f'<text x="{x:.0f}" y="{y:.0f}" font-size="12">{escape(t)}</text>' for x, y, t in words)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" role="img" aria-label="agreement">'
    paper = f'<style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>'
    return f"{head}{paper}{''.join(lines)}{''.join(dots)}{texts}</svg>\n"
