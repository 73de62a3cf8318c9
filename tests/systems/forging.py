"""What a forger can say of a kernel with barriers by phase that is not safe."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

from amk.systems import rule_evidence
from amk.systems.flat_judge import judge
from amk.systems.flat_system import FlatSystem
from amk.systems.machine import Machine
from amk.systems.rule_proof import extended, skeleton
from amk.systems.rule_reading import Refused

Json = dict[str, Any]


def complete(flat: FlatSystem, rng: Random) -> Iterator[Machine]:
    """Runs that end, whatever they show on their way: what a forger has."""
    for _ in range(6):
        machine = Machine(flat)
        while ready := [agent for agent in range(len(machine.at)) if machine.enabled(agent)]:
            machine.step(rng.choice(ready))
        if machine.at == machine.ends:
            yield machine


def claims_of(flat: FlatSystem, machine: Machine, block: Json, orders: Json) -> Json:
    """Everything that is so: how the run met its waits, and all of the order that helps."""
    claims: Json = {
        "met": [machine.wait_counts[row] for row in range(len(block["wait_counter"]))],
        "sent": [machine.sent[row] for row in range(len(block["signal_counter"]))],
    }
    found = skeleton(block, orders, claims)
    clocks = judge(rule_evidence._system(found.columns)).clocks
    parts = (rule_evidence._count_ranges, rule_evidence._expected, rule_evidence._fences)
    claims["before"] = sorted({pair for part in parts for pair in part(found, clocks)})
    claims["before"] = [list(pair) for pair in claims["before"]]
    return claims


def forged(rng: Random, claims: Json) -> Json:
    """The same with a number or a pair changed."""
    forgery = copy.deepcopy(claims)
    name = rng.choice(("met", "sent", "before"))
    if forgery[name]:
        k = rng.randrange(len(forgery[name]))
        if name == "before":
            forgery[name][k] = [rng.choice(forgery[name])[0], rng.choice(forgery[name])[1]]
        else:
            forgery[name][k] = max(0, forgery[name][k] + rng.choice((-2, -1, 1, 2)))
    return forgery


def proves(block: Json, orders: Json, claims: Json) -> bool:
    """The check would accept it, with a certificate that the judge gives for the extended system."""
    try:
        return judge(rule_evidence._system(extended(block, orders, claims))).safe
    except Refused:
        return False
