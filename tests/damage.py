"""Schedules broken on purpose, by editing the text of good ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from amk.schedule_ir.schedule import Loop, Node, Schedule, Step

Rewrite = Callable[[Step], Node | None]


def raised_threshold(schedule: Schedule, counter: str) -> Schedule:
    """The first wait on `counter` wants one more than is ever signalled."""
    data = schedule.model_dump(mode="json")
    wait = next(w for step in steps(data["programs"][0]["body"]) for w in step["waits"] if w["counter"] == counter)
    wait["at_least"]["1"] = wait["at_least"]["t"] + 1
    return Schedule.model_validate_json(json.dumps(data))


def steps(body: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every step of a program's body, loops entered once."""
    for node in body:
        if "body" in node:
            yield from steps(node["body"])
        else:
            yield node


def rewritten(schedule: Schedule, change: Rewrite) -> Schedule:
    """Every step replaced by change(step), or left out for None."""

    def body(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        out: list[Node] = []
        for node in nodes:
            new = node.model_copy(update={"body": body(node.body)}) if isinstance(node, Loop) else change(node)
            if new is not None:
                out.append(new)
        return tuple(out)

    programs = tuple(p.model_copy(update={"body": body(p.body)}) for p in schedule.programs)
    return schedule.model_copy(update={"programs": programs})
