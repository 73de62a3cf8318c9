"""Schedules broken on purpose, by editing the text of good ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from amk.schedule_ir.schedule import Schedule


def raised_threshold(schedule: Schedule, counter: str) -> Schedule:
    """The first wait on `counter` wants one more than is ever signalled."""
    data = schedule.model_dump(mode="json")
    wait = next(w for step in steps(data["programs"][0]["body"]) for w in step["waits"] if w["counter"] == counter)
    wait["at_least"]["1"] += 1
    return Schedule.model_validate_json(json.dumps(data))


def steps(body: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every step of a program's body, loops entered once."""
    for node in body:
        if "body" in node:
            yield from steps(node["body"])
        else:
            yield node
