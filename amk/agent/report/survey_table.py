"""What is left near the best, as tables of the report: every single change, and every two knobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from amk.agent.decide.keep import percent
from amk.agent.decide.neighbourhood import Fate, Pairs, Single, Survey, sentence

FATES: tuple[Fate, ...] = ("tried", "impossible", "duplicate", "avoided", "bounded", "open", "pending", "later")


LONG = 40
"""Characters of a cell from which on its column is kept wide: such a text in a narrow one is taller than a screen."""


def table(header: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Cells are escaped here; the first item of a row is its class."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f'<tr class="{escape(kind)}">' + "".join(map(_cell, row)) + "</tr>" for kind, row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _cell(text: str) -> str:
    kind = " class=long" if len(text) > LONG else ""
    return f"<td{kind}>{escape(text)}</td>"


def near_the_best(survey: Survey) -> str:
    """A section of the report."""
    singles = table(
        ("one knob", "value", "what became of it", "gain over the best"), [("", single_row(s)) for s in survey.singles]
    )
    header = ("two knobs", *FATES, "most that they helped each other", "most that a bounded one can gain")
    pairs = table(header, [("", pairs_row(p)) for p in survey.pairs if p.fates.total()])
    return (
        f"<h2>Near the best</h2><p>{escape(sentence(survey.event()))}.</p>"
        f"<details><summary>every plan that differs in one knob</summary>{singles}</details>"
        f"<details><summary>plans that differ in two, by their knobs</summary>{pairs}</details>"
    )


def single_row(single: Single) -> tuple[str, ...]:
    name, value = single.change
    return (name, str(value), single.fate, "" if single.worth is None else percent(0.0 - single.worth))


def pairs_row(pairs: Pairs) -> tuple[str, ...]:
    helped = "none measured" if pairs.help is None else f"{percent(pairs.help)} ({len(pairs.interactions)} measured)"
    reach = percent(pairs.reach) if pairs.fates["bounded"] else ""
    return (", ".join(pairs.knobs), *(str(pairs.fates[f] or "") for f in FATES), helped, reach)
