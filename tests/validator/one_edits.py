"""One-task edits of a plan, as the adversary's mutators and a search make them: one step, one share, one ring."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random

from pydantic import ValidationError

from amk.adversary.edits import Edit, Json, Path, steps
from amk.adversary.subjects import move, signals, waits
from amk.schedule_ir.schedule import Schedule

Maker = Callable[[Json, Random], list[Edit]]


def _changed(expr: Json, by: int) -> Json:
    return expr + by if isinstance(expr, int) else expr | {"1": expr.get("1", 0) + by}


def threshold(document: Json, rng: Random) -> list[Edit]:
    """One wait asks for one more or one less."""
    path, wait = rng.choice(waits(document))
    return [Edit("replace", (*path, "at_least"), _changed(wait["at_least"], rng.choice((-1, 1))))]


def amount(document: Json, rng: Random) -> list[Edit]:
    """One signal adds one more."""
    path, signal = rng.choice(signals(document))
    return [Edit("replace", (*path, "add"), _changed(signal["add"], 1))]


def no_wait(document: Json, rng: Random) -> list[Edit]:
    return [Edit("remove", rng.choice(waits(document))[0])]


def no_signal(document: Json, rng: Random) -> list[Edit]:
    return [Edit("remove", rng.choice(signals(document))[0])]


def weaker(document: Json, rng: Random) -> list[Edit]:
    """One wait or signal is relaxed."""
    path, _ = rng.choice([*waits(document), *signals(document)])
    return [Edit("replace", (*path, "order"), "relaxed")]


def no_step(document: Json, rng: Random) -> list[Edit]:
    return [Edit("remove", rng.choice([p for p, _ in steps(document)]))]


def no_barrier(document: Json, rng: Random) -> list[Edit]:
    return [Edit("remove", rng.choice([p for p, s in steps(document) if s["op"]["op"] == "barrier"]))]


def moved(document: Json, rng: Random) -> list[Edit]:
    """One step a place earlier or later."""
    return move(document, rng.choice([p for p, _ in steps(document)]), rng.choice((-1, 1)))


def share(document: Json, rng: Random) -> list[Edit]:
    """One row group goes from a worker to the next: still a partition."""
    name = rng.choice(("qkv", "hidden", "gate_up", "lm_head"))
    first, count = (list(document["tables"][f"{name}.{end}"]) for end in ("first", "count"))
    worker = rng.randrange(len(first) - 1)
    if not count[worker]:
        return share(document, rng)
    count[worker], count[worker + 1], first[worker + 1] = (
        count[worker] - 1,
        count[worker + 1] + 1,
        first[worker + 1] - 1,
    )
    path: Path = ("tables",)
    return [
        Edit("replace", (*path, f"{name}.count"), count),
        Edit("replace", (*path, f"{name}.first"), first),
    ]


def region(document: Json, rng: Random) -> list[Edit]:
    """A shared buffer lies 128 bytes further or nearer."""
    shared = [i for i, b in enumerate(document["buffers"]) if b["space"] == "shared" and not b["name"].startswith("w")]
    i, by = rng.choice(shared), rng.choice((-128, 128))
    offset = document["buffers"][i]["offset"]
    return [Edit("replace", ("buffers", i, "offset"), offset + (by if offset + by >= 0 else 128))]


def buffer(document: Json, rng: Random) -> list[Edit]:
    """A step uses another buffer of the same sort."""
    kinds = {b["name"]: (b["space"], b["dtype"], b["role"]) for b in document["buffers"]}
    places = [
        (path, field, value)
        for path, step in steps(document)
        for field, value in step["op"].items()
        if field not in ("op", "role", "matrix") and isinstance(value, str) and value in kinds
    ]
    while True:
        path, field, value = rng.choice(places)
        others = [name for name, kind in kinds.items() if kind == kinds[value] and name != value]
        if others:
            return [Edit("replace", (*path, "op", field), rng.choice(others))]


def depth(document: Json, rng: Random) -> list[Edit]:
    """A ring has one slot less."""
    i = rng.randrange(len(document["streams"]))
    return [Edit("replace", ("streams", i, "slots"), document["streams"][i]["slots"] - 1)]


KINDS: dict[str, Maker] = {
    "threshold": threshold, "amount": amount, "no wait": no_wait, "no signal": no_signal, "relaxed": weaker,
    "no step": no_step, "no barrier": no_barrier, "moved step": moved, "share": share, "region": region,
    "buffer": buffer, "ring depth": depth,
}  # fmt: skip


def mutants(document: Json, seed: int, each: int) -> Iterator[tuple[str, list[Edit]]]:
    """`each` edits of every kind that the plan has a place for, kinds in turn."""
    rng = Random(seed)
    for _ in range(each):
        for kind, make in KINDS.items():
            if kind != "no barrier" or any(s["op"]["op"] == "barrier" for _, s in steps(document)):
                yield kind, make(document, rng)


def valid(document: Json) -> str | None:
    """The text of the document, if it is a schedule."""
    text = json.dumps(document)
    try:
        Schedule.model_validate_json(text)
    except ValidationError:
        return None
    return text
