"""Edits of the order within a worker, of plans with more than two warps: barriers of some warps, counters between them,
steps run by others.

Plans have barriers of all warps, and two or three roles. Here every range of warps is a role, so that a warp may meet
some and be ordered before others by way of them, by counters or by flag words alone.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from amk.adversary.edits import Json, at, meeting, steps
from amk.schedule_ir.ops import OPS
from amk.schedule_ir.ops.base import LEFT

SYNC: Final = ("wait", "signal", "barrier")
KEPT: Final = (*SYNC, "gemv", "refill", "begin")
"""Ops that `step_by_others` leaves with their warps: rings and registers are theirs."""

LEAVE: Final = {name: op.leaves for name, op in OPS.items() if op.leaves}
"""Op -> the field of later ops that says how many warps ran it."""


MOST_ROLES: Final = 32


def every_range(document: Json) -> None:
    """Each range of warps gets a role, unless it has one; if they are too many, the short ones."""
    warps, known = document["launch"]["warps"], {(r["first"], r["count"]) for r in document["roles"]}
    ranges = [(first, count) for count in range(1, warps + 1) for first in range(warps - count + 1)]
    missing = [one for one in ranges if one not in known][: MOST_ROLES - len(known)]
    document["roles"] += [{"name": f"r{first}.{count}", "first": first, "count": count} for first, count in missing]


def drained_by_some(document: Json, rng: Random) -> None:
    """Some warps alone multiply, and have rings."""
    (stream,), role = document["streams"], rng.choice(document["roles"])
    for _, step in steps(document):
        if step["op"]["op"] in ("gemv", "refill"):
            step["op"]["role"] = role["name"]
    for buffer in document["buffers"]:
        if buffer["name"] in (stream["ring"], stream["full"]):
            buffer["shape"][0] = role["count"]
    stream["role"] = role["name"]


def _role(document: Json, rng: Random, count: int | None = None) -> str:
    found: str = rng.choice([r["name"] for r in document["roles"] if count in (None, r["count"])])
    return found


def _size(document: Json, name: str) -> int:
    return next(int(r["count"]) for r in document["roles"] if r["name"] == name)


def _body(document: Json, rng: Random, *ops: str) -> tuple[Json, int]:
    """A list of steps, and the place in it of one with such an op."""
    path = rng.choice([path for path, step in steps(document) if step["op"]["op"] in ops])
    return at(document, path[:-1]), int(path[-1])


def _barrier(document: Json, role: str) -> Json:
    """One of this role: an id belongs to one."""
    taken = {s["op"]["role"]: s["op"]["id"] for _, s in steps(document) if s["op"]["op"] == "barrier"}
    number = taken.get(role, min({*range(16)} - {*taken.values()}))
    op = {"op": "barrier", "role": role, "id": number, "agents": _size(document, role)}
    return {"op": op, "waits": [], "signals": []}


def barrier_of_others(document: Json, rng: Random) -> None:
    body, place = _body(document, rng, "barrier")
    body[place] = _barrier(document, _role(document, rng)) | {k: body[place][k] for k in ("waits", "signals")}


def barrier_in_parts(document: Json, rng: Random) -> None:
    """Some barriers, of two to four roles, in the place of one."""
    body, place = _body(document, rng, "barrier")
    body.pop(place)
    for _ in range(rng.choice((2, 3, 3, 4))):
        body.insert(place, _barrier(document, _role(document, rng)))
        place += rng.choice((0, 1))


def hop(document: Json, rng: Random) -> None:
    """Some warps signal a counter that others wait for: of their worker, of the next one, or of all."""
    launch, layers = document["launch"], document["model"]["layers"]
    workers = launch["workers"]
    path = rng.choice([path for path, step in steps(document) if step["op"]["op"] == "barrier"])
    body, place = at(document, path[:-1]), int(path[-1])
    around = [at(document, path[:n]) for n in range(1, len(path))]
    looped = any(isinstance(node, dict) and node.get("var") == "l" for node in around)
    if rng.random() < 0.7:
        body.pop(place)
    to, every = rng.choice(("worker", "worker", "next")), rng.random() < 0.2
    document["tables"]["next"] = [(worker + 1) % workers for worker in range(workers)]
    signals, waits = (_role(document, rng, rng.choice((1, 1, None))) for _ in range(2))
    amount = _size(document, signals) * (workers if every else 1)
    least = {"t": amount, "1": amount if rng.random() < 0.8 else rng.randint(0, amount)}
    name, layer = f"hop{len(document['counters'])}", [{"l": 1}] if looped else []
    shape = [1 if every else workers, *([layers] if looped else [])]
    document["counters"].append({"name": name, "shape": shape, "scope": "gpu", "handoff": "fenced", "init": 0})
    signal, wait = meeting(name, [0 if every else {to: 1}, *layer], least)
    signal["op"]["role"], wait["op"]["role"] = signals, waits
    wait["waits"][0] = wait["waits"][0] | {"index": [0 if every else {"worker": 1}, *layer]}
    body.insert(min(len(body), place + rng.choice((0, 0, 1, 2, 4))), wait)
    body.insert(max(0, place - rng.choice((0, 0, 1, 2))), signal)


def _scaled(document: Json, counters: set[str], new: int, old: int) -> None:
    """Thresholds of counters that `new` warps signal where `old` did."""
    for _, step in steps(document):
        for wait in step["waits"]:
            if wait["counter"] in counters and isinstance(wait["at_least"], dict):
                wait["at_least"] = {symbol: factor * new // old for symbol, factor in wait["at_least"].items()}


def by_others(document: Json, rng: Random) -> None:
    """Other warps wait, or signal."""
    body, place = _body(document, rng, "wait", "signal")
    step, old = body[place], _size(document, body[place]["op"]["role"])
    step["op"]["role"] = _role(document, rng, rng.choice((1, old, None)))
    _scaled(document, {s["counter"] for s in step["signals"]}, _size(document, step["op"]["role"]), old)


def step_by_others(document: Json, rng: Random) -> None:
    """Other warps run an op, and all that count how many do know."""
    _, step = rng.choice([(path, step) for path, step in steps(document) if step["op"]["op"] not in KEPT])
    name, old = step["op"]["op"], _size(document, step["op"]["role"])
    new = _role(document, rng, rng.choice((1, old, None)))
    alike = {name} | ({op for op, field in LEAVE.items() if field == LEAVE[name]} if name in LEAVE else set())
    for _, other in steps(document):
        if other["op"]["op"] in alike:
            other["op"]["role"] = new
    _scaled(document, {s["counter"] for s in step["signals"]}, _size(document, new), old)
    count, workers = _size(document, new), document["launch"]["workers"]
    for _, other in steps(document):
        for field in {LEAVE.get(name)} & {*LEFT} & {*other["op"]}:
            if other["op"][field]:
                other["op"][field] = count * (workers if field == "candidates" else 1)


def all_wait(document: Json, rng: Random) -> None:
    """Who goes on behind a wait waits by itself; what stood between, barriers mostly, goes."""
    body, place = _body(document, rng, "wait")
    behind = next(n for n in range(place + 1, len(body)) if body[n].get("op", {}).get("op") not in SYNC)
    body[behind]["waits"] = body[place]["waits"] + body[behind]["waits"]
    del body[place : behind if rng.random() < 0.5 else place + 1]


def overlay(document: Json, rng: Random) -> None:
    """Two arrays of shared memory begin at one place."""
    rings = {name for stream in document["streams"] for name in (stream["ring"], stream["full"])}
    shared = [b for b in document["buffers"] if b["space"] == "shared" and b["name"] not in rings]
    one, other = rng.sample(shared, 2)
    one["offset"] = other["offset"]


EDITS: Final[tuple[Callable[[Json, Random], None], ...]] = (
    barrier_of_others, barrier_of_others, barrier_in_parts, barrier_in_parts, hop, hop, hop, by_others, step_by_others,
    all_wait, overlay,
)  # fmt: skip
