"""A schedule and its simulated time as text, a page at a time."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from amk.agent.tools.refused import RefusedError
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits.tree import Branch, Leaf, tree, walk
from amk.schedule_ir.schedule import Schedule
from amk.simulator.kinds import known_error
from amk.simulator.predict import Prediction, Simulator

Part = Literal["outline", "step", "memory", "table"]
PAGE: Final = 6000
"""Characters of an answer."""
STEPS: Final = 12
"""Steps that are told with their time."""


def page(text: str, offset: int) -> str:
    """At most PAGE characters from `offset`, and how to go on."""
    if not 0 <= offset <= len(text):
        raise RefusedError(f"offset: 0 to {len(text)}")
    end = offset + PAGE
    rest = f"\n... {len(text) - end} more characters: offset {end}" if end < len(text) else ""
    return text[offset:end] + rest


def schedule(whole: Schedule, part: Part, name: str, offset: int) -> str:
    """RefusedError if there is no such step or table."""
    if part == "outline":
        return page("\n".join(outline(whole)), offset)
    if part == "memory":
        return page(_memory(whole), offset)
    if part == "step":
        return page(_step(whole, name), offset)
    if not name:
        return ", ".join(whole.tables)
    if name not in whole.tables:
        raise RefusedError(f"there is no table {name[:60]!r}; there are {', '.join(whole.tables)}")
    return page(json.dumps(whole.tables[name]), offset)


def outline(whole: Schedule) -> list[str]:
    """A line for each step: its name, and what it waits for and signals."""
    lines = []
    for program in whole.programs:
        root = tree(program)
        lines.append(f"{root.name}: {len(list(walk(root)))} nodes")
        for _, node in walk(root):
            indent = "  " * node.name.count("/")
            lines.append(indent + (_loop(node) if isinstance(node, Branch) else _line(node)))
    return lines


def _loop(node: Branch) -> str:
    return f"{node.name}: loop of {'the tokens' if node.count is None else node.count}"


def _line(node: Leaf) -> str:
    waits = "".join(f" waits {w.counter}" for w in node.step.waits)
    return node.name + waits + "".join(f" signals {s.counter}" for s in node.step.signals)


def _memory(whole: Schedule) -> str:
    parts: dict[str, Any] = {"launch": whole.launch, "kv": whole.kv}
    lines = [f"{key}: {value.model_dump_json(exclude_none=True)}" for key, value in parts.items()]
    for kind in ("roles", "streams", "counters", "buffers"):
        lines += [f"{kind[:-1]}: {each.model_dump_json(exclude_defaults=True)}" for each in getattr(whole, kind)]
    return "\n".join(lines)


def _step(whole: Schedule, name: str) -> str:
    for program in whole.programs:
        for _, node in walk(tree(program)):
            if node.name == name and isinstance(node, Leaf):
                return node.step.model_dump_json(exclude_defaults=True)
            if node.name == name and isinstance(node, Branch):
                inside = [leaf for _, leaf in walk(node) if isinstance(leaf, Leaf)]
                return "\n".join(f"{leaf.name}: {leaf.step.model_dump_json(exclude_defaults=True)}" for leaf in inside)
    raise RefusedError(f"there is no step or loop {name[:80]!r}: the outline has the names")


def _predicted(simulator: Simulator, whole: Schedule, position: int) -> Prediction:
    try:
        return simulator.predict(whole, position)
    except AmkError as error:
        raise RefusedError(str(error)) from error


def times(simulator: Simulator, whole: Schedule, position: int) -> str:
    """Time of a token by phase, and by the steps that lose most; microseconds, mean of the workers."""
    from amk.agent.tools.time_by_phase import parts_of
    from amk.agent.tools.time_by_step import by_step

    found = _predicted(simulator, whole, position)
    total, floor = 1e3 * found.ms, 1e3 * found.floor_ms
    lines = [f"simulated at position {position}: {total:.1f} us, floor {floor:.1f} us; by phase:"]
    lines += [f"{phase.name}: {phase.us:.1f} ({parts_of(phase)})" for phase in found.phases]
    lines.append(f"in the {found.window.layers} simulated layers, us of a worker in which memory is not at work:")
    lost = sorted(by_step(found).items(), key=lambda each: -each[1])
    lines += [f"{name}: {us:.2f}" for name, us in lost[:STEPS]]
    lines.append(f"error of such predictions: {known_error(whole, position, constants=simulator.constants)}")
    return "\n".join(lines)


def timeline(simulator: Simulator, whole: Schedule, position: int, group: int, offset: int) -> str:
    """Spans of the first warp of the first worker of a group."""
    from amk.simulator.timeline import timeline_of

    found = timeline_of(_predicted(simulator, whole, position))
    if not 0 <= group < len(found.tracks):
        raise RefusedError(f"groups are 0 to {len(found.tracks) - 1}")
    track = found.tracks[group]
    lines = [f"{found.title}; group {group} of {len(found.tracks)}: {track.group}, {track.name}"]
    lines += [f"{s.start:.2f} to {s.end:.2f} {s.name}: {s.detail}" for s in found.spans if s.track == group]
    return page("\n".join(lines), offset)
