"""A reader of flat-system files, written from `system-format.md` alone: plain Python, nothing of the product.

Small systems only: one run per event.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

System = dict[str, Any]


def run(system: System, withheld: int = -1) -> list[int]:
    """Events of a run that takes whatever it can, and never `withheld`."""
    first, value = system["agent_first"], list(system["counter_init"])
    at, order = list(first[:-1]), []
    blocked: dict[int, list[int]] = {}
    ready = list(range(len(at)))
    while ready:
        agent = ready.pop()
        while at[agent] < first[agent + 1] and at[agent] != withheld:
            event = at[agent]
            waits = range(system["wait_first"][event], system["wait_first"][event + 1])
            unmet = [w for w in waits if value[system["wait_counter"][w]] < system["wait_threshold"][w]]
            if unmet:
                blocked.setdefault(system["wait_counter"][unmet[0]], []).append(agent)
                break
            order.append(event)
            at[agent] += 1
            for s in range(system["signal_first"][event], system["signal_first"][event + 1]):
                counter = system["signal_counter"][s]
                value[counter] += system["signal_amount"][s]
                ready += blocked.pop(counter, [])
    return order


def touches(system: System) -> dict[tuple[int, int], list[tuple[int, int, int, int]]]:
    """(buffer, byte run) -> (event, kind, value, displacement); byte runs are cut wherever a box begins or ends."""
    cuts: dict[int, set[int]] = {}
    boxes = []
    for event in range(len(system["event_tag"])):
        for a in range(system["access_first"][event], system["access_first"][event + 1]):
            boxes.append((event, *(system[f"access_{n}"][a] for n in ("kind", "buffer", "lo", "hi", "value", "delta"))))
    for table, event, kind in (("initial", -1, 1), ("final", 1 << 60, 0)):
        columns = [system[f"{table}_{n}"] for n in ("buffer", "lo", "hi", "value", "delta")]
        boxes += [(event, kind, *box) for box in zip(*columns, strict=True)]
    for _, _, buffer, lo, hi, _, _ in boxes:
        cuts.setdefault(buffer, set()).update((lo, hi))
    ordered = {buffer: sorted(places) for buffer, places in cuts.items()}
    found: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    for event, kind, buffer, lo, hi, value, delta in boxes:
        for place in ordered[buffer]:
            if lo <= place < hi:
                found.setdefault((buffer, place), []).append((event, kind, value, delta))
    return found


def ordered_pairs(system: System, pairs: set[tuple[int, int]]) -> bool:
    """Each pair is ordered one way or the other in every run."""
    reached: dict[int, set[int]] = {}

    def before(a: int, b: int) -> bool:
        if a not in reached:
            reached[a] = set(run(system, withheld=a))
        return b not in reached[a]

    return all(before(a, b) or before(b, a) for a, b in pairs)


def visible(system: System, pairs: set[tuple[int, int]]) -> bool:
    """The first of each pair is before the second in every run."""
    return all(b not in set(run(system, withheld=a)) for a, b in pairs)


def safe(file: dict[str, Any]) -> bool:
    """The four conditions."""
    systems = file["systems"]
    block = systems["block"]
    word = systems.get("word", block)
    order = run(block)
    if len(order) != len(block["event_tag"]):
        return False
    place = {event: n for n, event in enumerate(run(word))}
    races: set[tuple[int, int]] = set()
    flows: set[tuple[int, int]] = set()
    shared = sum(not name.startswith("shared memory") for name in word["buffer_names"])
    for (buffer, _), entries in touches(word).items():
        inside = sorted((place[e], k, e) for e, k, _, _ in entries if 0 <= e < 1 << 60)
        groups: list[list[tuple[int, int, int]]] = []
        for entry in inside:
            if groups and entry[1] == 0 and groups[-1][0][1] == 0:
                groups[-1].append(entry)
            else:
                groups.append([entry])
        for left, right in pairwise(groups):
            pairs = {(a[2], b[2]) for a in left for b in right if a[2] != b[2]}
            races |= pairs
            if left[0][1] != 0 and buffer not in file["tagged"] and buffer < shared:
                flows |= pairs
        if not _values(entries, place):
            return False
    return ordered_pairs(word, races) and visible(systems.get("fence", block), flows)


def _values(entries: list[tuple[int, int, int, int]], place: dict[int, int]) -> bool:
    held: tuple[int, int] | None = None
    when = {event: place.get(event, event if event < 0 else 1 << 61) for event, *_ in entries}
    for _, kind, value, delta in sorted(entries, key=lambda e: (when[e[0]], e[1])):
        if kind == 0 and value != -1 and held != (value, delta):
            return False
        if kind == 1:
            held = value, delta
    return True
