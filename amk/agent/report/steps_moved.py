"""Which steps moved: one layer of the start above, the same layer of the best below, on one time axis.

A step that is in both at another place among the others has a line from one to the other; steps that only one of them
has stand out. Steps are told apart by their op, what they wait for and what they signal, barriers by the step before
them, and are compared in the order in which a warp runs them. Times are simulated; both layers begin at 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from amk.schedule_ir.edits.difference import in_both_orders
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Step
from amk.simulator.predict import Prediction
from amk.simulator.timeline import step_name

WIDTH, MARGIN, LANE, BETWEEN = 900, 60, 26, 120
"""Pixels: LANE is the height of a lane, BETWEEN the distance of the two."""
COLOURS = {"moved": "#e45756", "gone": "#f2b134", "new": "#f2b134", "same": "#8d96a0"}
LABELS = 6
"""Heights at which lines are named, in turn, so that neighbours do not hide each other."""
Key = tuple[str, tuple[str, ...], tuple[str, ...], int]
"""Name of the step, counters it waits for, counters it signals, and which of such steps it is."""


@dataclass(frozen=True)
class Bar:
    """A step of the layer and when it runs, microseconds from the layer's begin."""

    key: Key
    start: float
    end: float


def layer_of(prediction: Prediction) -> list[Bar]:
    """The last layer that is simulated, as the first warp of the first worker runs it. A step that takes no time stands
    where the one before it ended."""
    items = prediction.window.items[prediction.window.groups[0].program]
    inside = [number for number, item in enumerate(items) if "l" in item.loops and item.token == 0]
    mine = inside[-1:]
    while mine and mine[0] - 1 in inside and items[mine[0] - 1].loops["l"] == items[mine[-1]].loops["l"]:
        mine.insert(0, mine[0] - 1)
    times = {number: (0.0, 0.0) for number in mine}
    spans = [span for span in prediction.spans if span.group == 0 and span.item in times]
    begin = min((span.start for span in spans), default=0.0)
    for number in mine:
        of_step = [span for span in spans if span.item == number]
        before = times[number - 1][1] if number - 1 in times else 0.0
        start = min((span.start - begin for span in of_step), default=before)
        times[number] = start, max((span.end - begin for span in of_step), default=start)
    seen: Counter[tuple[str, tuple[str, ...], tuple[str, ...]]] = Counter()
    bars, last = [], "the layer's begin"
    for number in mine:
        step: Step = items[number].step
        name = step_name(prediction, 0, number)
        name, last = (f"barrier behind {last}", last) if isinstance(step.op, BarrierOp) else (name, name)
        which = (
            name,
            tuple(sorted(wait.counter for wait in step.waits)),
            tuple(sorted(signal.counter for signal in step.signals)),
        )
        bars.append(Bar((*which, seen[which]), *times[number]))
        seen[which] += 1
    return bars


def unlike(before: Sequence[Key], after: Sequence[Key]) -> tuple[set[Key], set[Key], set[Key]]:
    """(moved, only before, only after): as few as possible are said to have moved."""
    old, new = set(before), set(after)
    both = [key for key in before if key in new]
    return set(both) - set(in_both_orders(both, [key for key in after if key in old])), old - new, new - old


def steps_moved(start: Prediction, best: Prediction) -> str:
    """A section with the drawing; nothing where no step of the layer moved, came or went."""
    lanes = layer_of(start), layer_of(best)
    moved, gone, new = unlike(*([bar.key for bar in lane] for lane in lanes))
    if not moved | gone | new:
        return ""
    counts = f"{len(moved)} moved, {len(gone)} are gone and {len(new)} are new"
    words = (
        f"One layer of {worker(start)} from the start (above) to the best (below), simulated, on one axis: of its "
        f"steps {counts}. Red moved; yellow is in one of the two only. A step is told apart by what it does, waits for "
        f"and signals."
    )
    kinds = dict.fromkeys(moved, "moved") | dict.fromkeys(gone, "gone") | dict.fromkeys(new, "new")
    return f"<h2>Steps that moved</h2><p>{escape(words)}</p>{drawing(lanes, kinds)}"


def worker(prediction: Prediction) -> str:
    return f"worker {prediction.window.groups[0].workers[0]}"


def drawing(lanes: tuple[list[Bar], list[Bar]], kinds: Mapping[Key, str]) -> str:
    """SVG: lanes of bars in the colour of their kind, and a line for each step that moved. kinds: of steps that are not
    where they were."""
    most = max((bar.end for lane in lanes for bar in lane), default=0.0) or 1.0
    scale = (WIDTH - MARGIN - 20) / most
    tops = 20, 20 + LANE + BETWEEN

    def across(time: float) -> float:
        return MARGIN + time * scale

    parts = []
    for lane, top, name in zip(lanes, tops, ("start", "best"), strict=True):
        parts.append(f'<text x="4" y="{top + LANE / 2 + 4:.0f}" font-size="12" fill="currentColor">{name}</text>')
        for bar in lane:
            kind = kinds.get(bar.key, "same")
            width = max((bar.end - bar.start) * scale - 0.5, 1.5)
            title = f"{named(bar.key)}: {bar.start:.2f} to {bar.end:.2f} us" + ("" if kind == "same" else f", {kind}")
            parts.append(
                f'<rect class="{kind}" x="{across(bar.start):.1f}" y="{top}" width="{width:.1f}" height="{LANE}" '
                f'fill="{COLOURS[kind]}"><title>{escape(title)}</title></rect>'
            )
    above, below = ({bar.key: bar for bar in lane} for lane in lanes)
    for number, key in enumerate(bar.key for bar in lanes[0] if kinds.get(bar.key) == "moved"):
        x1, x2 = (across((bar.start + bar.end) / 2) for bar in (above[key], below[key]))
        parts.append(
            f'<line x1="{x1:.1f}" y1="{tops[0] + LANE}" x2="{x2:.1f}" y2="{tops[1]}" stroke="#e45756">'
            f"<title>{escape(named(key))}</title></line>"
        )
        share = (number % LABELS + 1) / (LABELS + 1)
        parts.append(
            f'<text x="{x1 + (x2 - x1) * share + 3:.1f}" y="{tops[0] + LANE + BETWEEN * share:.0f}" font-size="11" '
            f'fill="currentColor">{escape(named(key))}</text>'
        )
    height = tops[1] + LANE + 24
    parts += [
        f'<text x="{MARGIN}" y="{height - 6}" font-size="12" fill="currentColor">0 us</text>',
        f'<text x="{WIDTH - 20}" y="{height - 6}" font-size="12" text-anchor="end" '
        f'fill="currentColor">{most:.1f} us</text>',
    ]
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="steps that moved">{"".join(parts)}</svg>'


def named(key: Key) -> str:
    """`wait, for act`, `gemv down, signals hidden`, ..."""
    name, waits, signals, _ = key
    words = [name]
    words += [f"for {' and '.join(waits)}"] if waits else []
    words += [f"signals {' and '.join(signals)}"] if signals else []
    return ", ".join(words)
