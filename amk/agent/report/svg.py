"""Drawings of a run as inline SVG; numbers only, so nothing in them needs escaping but the labels."""

from __future__ import annotations

from html import escape
from math import exp

from amk.agent.journal.state import State

WIDTH, HEIGHT, MARGIN = 900, 260, 48


def best_curve(state: State, simulated: bool) -> str:
    """Speed relative to the start over evaluations, as a step line; grey dots are what was measured and not kept."""
    evals = max(state.evals, 1)
    dots, seen = [], 0
    for trial in state.trials:
        seen += trial.evaluated
        if trial.score is not None and trial.decided is not None:
            dots.append((seen, exp(-trial.score), trial.decided.outcome == "kept"))
    top = max([1.02, exp(-state.best_score) * 1.02])
    low = 0.9

    def place(x: float, y: float) -> tuple[float, float]:
        across = MARGIN + (WIDTH - 2 * MARGIN) * x / evals
        up = (min(max(y, low), top) - low) / (top - low)
        return across, HEIGHT - MARGIN + (2 * MARGIN - HEIGHT) * up

    points, level = [place(0, 1.0)], 1.0
    for mark in state.curve:
        points += [place(mark.evals, level), place(mark.evals, level := exp(-mark.score))]
    points.append(place(evals, level))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 if kept else 2}" fill="{"#2a7f3f" if kept else "#999"}"/>'
        for x, y, kept in ((*place(x, y), kept) for x, y, kept in dots)
    )
    label = "speed relative to the start" + (", simulated" if simulated else "")
    texts = [
        (MARGIN, 24.0, "start", label),
        (WIDTH - MARGIN, HEIGHT - 8.0, "end", f"{evals} evaluation{'' if evals == 1 else 's'}"),
        *((4, place(0, y)[1] - 4, "start", f"{y:.2f}x") for y in (1.0, top / 1.02)),
    ]
    words = "".join(
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="12" text-anchor="{anchor}">{escape(text)}</text>'
        for x, y, anchor, text in texts
    )
    path = f'<polyline points="{line}" fill="none" stroke="#2a7f3f" stroke-width="2"/>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="best so far">{marks}{path}{words}</svg>'
