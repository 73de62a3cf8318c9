"""The difference of two JSON documents as few changes, and each as a replacement of text in the file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from amk.report.diagnostic import Change, Fix
from amk.report.json_file import Extent, Positions
from amk.report.schema import json_pointer

Path = tuple[str | int, ...]


def fix(description: str, before: Any, after: Any, positions: Positions | None) -> Fix:
    """What turns `before` into `after`. positions: of the file that `before` was read from, for regions of text.

    Each change says what happens to the document as the changes before it left it; regions are of the file as it is,
    and are left out if replacing them all does not give `after`.
    """
    changes = list(_changes(before, after, ()))
    plain = Fix(description, tuple(change for change, _ in changes))
    if positions is None:
        return plain
    placed = Fix(description, tuple(_placed(change, path, positions) for change, path in changes))
    return placed if _edited(placed, positions) == after else plain


def _edited(repair: Fix, positions: Positions) -> Any:
    """The document after the replacements, None if they cannot all be made."""
    lines = positions.text.split("\n")
    starts = list(itertools.accumulate((len(line) + 1 for line in lines), initial=0))
    text, at = positions.text, len(positions.text)
    spans = []
    for order, change in enumerate(repair.changes):
        if change.start is None or change.end is None:
            return None
        first, last = (starts[line - 1] + column - 1 for line, column in (change.start, change.end))
        spans.append((first, last, order, change.text))
    for first, last, _, new in sorted(spans, reverse=True):
        if last > at:
            return None
        text, at = text[:first] + new + text[last:], first
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError:
        return None


def _changes(before: Any, after: Any, path: Path) -> Iterator[tuple[Change, Path]]:
    """Changes with their path in the original document."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key in before:
            yield from _changes(before[key], after[key], (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_changes(before, after, path)
    elif before != after or type(before) is not type(after):
        yield Change("replace", json_pointer(path), after), path


def _list_changes(before: list[Any], after: list[Any], path: Path) -> Iterator[tuple[Change, Path]]:
    """Common ends stay. Between them a rotation by one is a removal and an insertion; what is left goes in pairs."""
    low = 0
    while low < min(len(before), len(after)) and before[low] == after[low]:
        low += 1
    high = 0
    while high < min(len(before), len(after)) - low and before[-1 - high] == after[-1 - high]:
        high += 1
    old, new = before[low : len(before) - high], after[low : len(after) - high]
    if len(old) == len(new) > 1 and (old[1:] == new[:-1] or old[:-1] == new[1:]):
        down = old[1:] == new[:-1]
        taken, put = (low, low + len(old) - 1) if down else (low + len(old) - 1, low)
        yield Change("remove", json_pointer((*path, taken))), (*path, taken)
        yield Change("insert", json_pointer((*path, put)), new[-1 if down else 0]), (*path, put + down)
        return
    paired = min(len(old), len(new))
    for i in range(paired):
        yield from _changes(old[i], new[i], (*path, low + i))
    for i in range(paired, len(old)):
        yield Change("remove", json_pointer((*path, low + paired))), (*path, low + i)
    for i in range(paired, len(new)):
        yield Change("insert", json_pointer((*path, low + i)), new[i]), (*path, min(low + i, len(before)))


def _placed(change: Change, path: Path, positions: Positions) -> Change:
    """The change with its region, if the file has the value that it is about."""
    span = _span(change, path, positions.extents)
    if span is None:
        return change
    first, last, lead, tail = span
    text = "" if change.do == "remove" else lead + json.dumps(change.value) + tail
    return Change(change.do, change.path, change.value, positions.place(first), positions.place(last), text)


def _span(change: Change, path: Path, extents: dict[str, Extent]) -> tuple[int, int, str, str] | None:
    """(first byte, one past the last, what goes before the new value, what behind it)."""
    here = extents.get(json_pointer(path))
    if change.do == "replace":
        return None if here is None else (here.first, here.last, "", "")
    index = int(path[-1])
    following = extents.get(json_pointer((*path[:-1], index + 1)))
    before = extents.get(json_pointer((*path[:-1], index - 1))) if index else None
    if change.do == "remove":
        return None if here is None else _removal(here, before, following)
    if here is not None:
        return here.first, here.first, "", ","
    if before is not None:
        return before.last, before.last, ",", ""
    around = extents.get(json_pointer(path[:-1]))
    return None if around is None else (around.first + 1, around.first + 1, "", "")


def _removal(here: Extent, before: Extent | None, following: Extent | None) -> tuple[int, int, str, str]:
    """One of the commas beside the value goes with it."""
    if following is not None:
        return here.first, following.first, "", ""
    return (before.last if before is not None else here.first), here.last, "", ""
