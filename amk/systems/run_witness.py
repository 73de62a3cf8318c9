"""A run of a system with rules as a witness, and its replay."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any, Final

from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.systems.document import parse_system, to_json
from amk.systems.flat_system import FlatSystem
from amk.systems.machine import Trouble, replayed_order

FORMAT: Final = "amk.run/1"
Json = dict[str, Any]


def run_json(system: FlatSystem, trouble: Trouble, order: tuple[int, ...]) -> Json:
    """What `amk replay` reads: the system, the run as (agent, events) in turn, and what it shows."""
    agents = (int(system.block.agent_of[event]) for event in order)
    legs = [[agent, len(list(group))] for agent, group in groupby(agents)]
    return {
        "format": FORMAT,
        "system": to_json(system),
        "order": legs,
        "kind": trouble.kind,
        "events": list(trouble.events),
    }


def replay_run(witness: Json, file: str) -> bool:
    """Whether the run is one of the system and shows what it says. AMK00x for what is no such file."""
    if set(witness) != {"format", "system", "order", "kind", "events"}:
        raise AmkError(Diagnostic("AMK005", "a run has system, order, kind and events", where=Where(file=file)))
    system = parse_system(json.dumps(witness["system"]).encode(), file)
    legs = witness["order"]
    if not isinstance(legs, list) or not all(
        isinstance(leg, list) and len(leg) == 2 and all(type(n) is int and 0 <= n < 1 << 32 for n in leg)
        for leg in legs
    ):
        raise AmkError(Diagnostic("AMK005", "the order is a list of [agent, events]", where=Where(file=file)))
    shown = replayed_order(system, [(agent, count) for agent, count in legs])
    return shown is not None and shown.kind == witness["kind"] and list(shown.events) == witness["events"]
