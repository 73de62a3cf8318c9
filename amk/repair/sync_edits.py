"""Candidate edits of waits, signals and the order of steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from amk.adversary.edits import Edit, Json, Path
from amk.repair.scene import Candidate, Scene

REACH = 6
"""Steps that a step is moved, or that are looked at around the finding."""


def orders(scene: Scene) -> Iterator[Candidate]:
    """What is outside the class becomes a plain wait or signal; a relaxed operation an acquire or a release."""
    usual = (
        ("waits", "compare", ">="), ("signals", "action", "add"), ("waits", "touch", "strong"),
        ("signals", "touch", "strong"),
    )  # fmt: skip
    for kind, field, plain in usual:
        for path, entry in scene.entries(kind):
            if entry.get(field, plain) != plain:
                text = f"{plain} instead of {entry[field]} on '{entry['counter']}'"
                yield Candidate(text, [Edit("remove", (*path, field))])
    for kind, strong in (("waits", "acquire"), ("signals", "release")):
        for path, entry in scene.entries(kind):
            if entry["order"] == "relaxed":
                verb = "acquire at the wait for" if kind == "waits" else "release at the signal of"
                yield Candidate(f"{verb} '{entry['counter']}'", [Edit("replace", (*path, "order"), strong)])


def thresholds(scene: Scene) -> Iterator[Candidate]:
    """A wait gets the threshold of another one, or one more or less."""
    used = [entry["at_least"] for _, entry in scene.entries("waits")]
    common = sorted(_distinct(used), key=lambda value: -used.count(value))
    for path, entry in scene.entries("waits"):
        for value in (*common, *_off_by_one(entry["at_least"])):
            if value != entry["at_least"]:
                text = f"wait for {entry['counter']} >= {_expr(value)} instead of {_expr(entry['at_least'])}"
                yield Candidate(text, [Edit("replace", (*path, "at_least"), value)])


def _off_by_one(value: Json) -> list[Json]:
    terms = {"1": value} if isinstance(value, int) else value
    keys = dict.fromkeys([*terms, "1"])
    return [terms | {key: terms.get(key, 0) + by} for by in (-1, 1) for key in keys]


def signals(scene: Scene) -> Iterator[Candidate]:
    """A signal adds 1, or goes to the counter or index that a wait looks at."""
    waited = [entry for _, entry in scene.entries("waits")]
    counters = {entry["counter"] for _, entry in scene.entries("signals")}
    for path, entry in scene.entries("signals"):
        if entry["add"] != 1:
            text = f"signal '{entry['counter']}' with 1 instead of {_expr(entry['add'])}"
            yield Candidate(text, [Edit("replace", (*path, "add"), 1)])
        for index in _distinct([w["index"] for w in waited if w["counter"] == entry["counter"]]):
            if index != entry["index"]:
                text = f"signal {_counter(entry | {'index': index})} instead of {_counter(entry)}"
                yield Candidate(text, [Edit("replace", (*path, "index"), index)])
        if sum(entry["counter"] == other["counter"] for _, other in scene.entries("signals")) > 1:
            yield Candidate(f"do not signal {_counter(entry)} at step {path[-3]}", [Edit("remove", path)])
        for wait in waited:
            if wait["counter"] not in counters:
                changed = entry | {"counter": wait["counter"], "index": wait["index"]}
                text = f"signal {_counter(changed)} instead of {_counter(entry)}"
                yield Candidate(text, [Edit("replace", path, changed)])


def waits(scene: Scene) -> Iterator[Candidate]:
    """A wait looks at the index, or the counter, that is signalled; or it goes."""
    entries = [entry for _, entry in scene.entries("signals")]
    for path, entry in scene.entries("waits"):
        for signal in _distinct([{"counter": s["counter"], "index": s["index"]} for s in entries]):
            changed = entry | signal
            if changed != entry and len(signal["index"]) == len(entry["index"]):
                text = f"wait for {_counter(changed)} instead of {_counter(entry)}"
                yield Candidate(text, [Edit("replace", path, changed)])
    for path, entry in scene.entries("waits"):
        yield Candidate(f"do not wait for {_counter(entry)} at step {path[-3]}", [Edit("remove", path)])


def missing_signals(scene: Scene) -> Iterator[Candidate]:
    """A counter that is waited for is signalled by a step before the wait, or by a step of the finding."""
    for path, entry in scene.entries("waits"):
        index = int(path[-3])
        order = "release" if entry["order"] == "acquire" else "relaxed"
        signal = {"counter": entry["counter"], "index": entry["index"], "add": 1, "order": order}
        for back in range(1, REACH + 1):
            before = (*path[:-3], index - back)
            if index - back >= 0 and "op" in scene.at(before) and signal not in scene.at(before)["signals"]:
                text = f"signal {_counter(signal)} after {scene.step_name(before)}"
                yield Candidate(text, [Edit("insert", (*before, "signals", 0), signal)])


def missing_waits(scene: Scene) -> Iterator[Candidate]:
    """A wait for what a step signals, before a step of the finding; counters that nothing waits for come first."""
    waited = {entry["counter"] for _, entry in scene.entries("waits")}
    targets = _distinct([{"counter": s["counter"], "index": s["index"]} for _, s in scene.entries("signals")])
    lonely = [signal for signal in targets if signal["counter"] not in waited]
    for group in (lonely, [signal for signal in targets if signal not in lonely]):
        for place, signal in itertools.product(_around(scene), group):
            for role, level in itertools.product(_waiting_roles(scene), _levels(scene)):
                wait = signal | {"at_least": level, "order": "acquire"}
                step = {"op": {"role": role, "op": "wait"}, "waits": [wait], "signals": []}
                text = f"wait for {_counter(wait)} >= {_expr(level)} before step {place[-1]}"
                yield Candidate(text, [Edit("insert", place, step)])


def _waiting_roles(scene: Scene) -> list[str]:
    """Roles whose steps wait, or all that there are."""
    roles = _distinct([step["op"]["role"] for _, step in scene.near if step["waits"] or step["op"]["op"] == "wait"])
    return roles or _distinct([step["op"]["role"] for _, step in scene.near])


def _levels(scene: Scene) -> list[Json]:
    """Thresholds in use, the most frequent first; one signal a worker and token if there is none."""
    used = [entry["at_least"] for _, entry in scene.entries("waits")]
    workers = scene.schedule.launch.workers
    return sorted(_distinct(used), key=lambda level: -used.count(level))[:3] or [{"t": workers, "1": workers}]


def barriers(scene: Scene) -> Iterator[Candidate]:
    """A barrier like those of the program, near the finding."""
    kinds = _distinct([step for _, step in scene.near if step["op"]["op"] == "barrier"])
    for place, step in itertools.product(_around(scene), kinds):
        plain = {"op": step["op"], "waits": [], "signals": []}
        text = f"a barrier of role '{step['op']['role']}' before step {place[-1]}"
        yield Candidate(text, [Edit("insert", place, plain)])


def moves(scene: Scene) -> Iterator[Candidate]:
    """A step goes a few places up or down: those of the finding any distance, then all others, near ones first."""
    guilty = [(path, by) for by in range(1, REACH + 1) for path in scene.places]
    others = [(path, by) for by in range(1, REACH + 1) for path, _ in scene.near]
    for path, by in dict.fromkeys([*guilty, *others]):
        for target in (int(path[-1]) + by, int(path[-1]) - by):
            body = scene.at(path[:-1])
            if 0 <= target < len(body) and body[target] != body[int(path[-1])]:
                where = "after" if target > int(path[-1]) else "before"
                text = f"move {scene.step_name(path)} {where} step {target}"
                edits = [Edit("remove", path), Edit("insert", (*path[:-1], target), scene.at(path))]
                yield Candidate(text, edits)


def removals(scene: Scene) -> Iterator[Candidate]:
    """A step goes; one that stands twice first."""
    texts = [str(step) for _, step in scene.near]
    twice = [entry for entry, text in zip(scene.near, texts, strict=True) if texts.count(text) > 1]
    for path, _ in [*twice, *scene.near[: 2 * REACH]]:
        yield Candidate(f"remove {scene.step_name(path)}", [Edit("remove", path)])


def _around(scene: Scene) -> list[Path]:
    """Where a step can be inserted: at the finding, then further before it, then behind it."""
    places = []
    for by in (0, *range(1, REACH + 1), *range(-1, -REACH, -1)):
        for place in scene.places:
            index = int(place[-1]) - by
            if 0 <= index <= len(scene.at(place[:-1])):
                places.append((*place[:-1], index))
    return list(dict.fromkeys(places))


def _distinct(values: list[Any]) -> list[Any]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _expr(expr: Json) -> str:
    """{"t": 4, "1": 3} as `4 t + 3`; a constant that is left out is 0."""
    if isinstance(expr, int):
        return str(expr)
    constant = expr.get("1", 0)
    named = {name: factor for name, factor in expr.items() if name != "1" and factor}
    parts = [
        name if factor == 1 else f"-{name}" if factor == -1 else f"{factor} {name}" for name, factor in named.items()
    ]
    parts += [str(constant)] if constant or not parts else []
    return " + ".join(parts).replace("+ -", "- ")


def _counter(entry: Json) -> str:
    return f"{entry['counter']}[{', '.join(_expr(e) for e in entry['index'])}]"
