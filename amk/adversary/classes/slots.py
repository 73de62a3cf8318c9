"""Classes 24 to 30, 32 to 34 in plans: shared memory that is filled and drained again, sums, rings and tags.

What is a slot here: shared arrays that every product fills anew (`x`, `part`), the rings of weights with their bytes
and held-back copies, tagged words with the tags that tell one phase from the next, counters with their arrivals.
"""

from __future__ import annotations

from random import Random

from amk.adversary.classes.sync import Mutant
from amk.adversary.edits import Edit, Json, Path, after, apply, at, find, named, steps
from amk.adversary.subjects import FENCED, Subject, draw, move, subject, users, waits

PLAIN = (*FENCED, "tagged")


def barriers(document: Json) -> list[Path]:
    return [p for p, s in steps(document) if s["op"]["op"] == "barrier"]


def without(paths: list[Path]) -> list[Edit]:
    """Remove these steps, the last first, so that no path moves before its turn."""
    return [Edit("remove", path) for path in sorted(paths, key=_place, reverse=True)]


def _place(path: Path) -> tuple[int, ...]:
    return tuple(part for part in path if isinstance(part, int))


def _fewer_barriers(rng: Random, document: Json, weights: tuple[int, ...]) -> list[Edit]:
    found = barriers(document)
    return without(rng.sample(found, min(len(found), rng.choice(weights))))


def arrivals(document: Json, counter: str, times: int) -> list[Edit]:
    """Waits for a counter that so many times as many arrive at."""
    waiting, _ = users(document, counter)
    scaled = {p: {k: v * times for k, v in at(document, (*p, "at_least")).items()} for p in waiting}
    return [Edit("replace", (*p, "at_least"), reach) for p, reach in scaled.items()]


def _spare(document: Json, like: str, name: str) -> list[Edit]:
    """A shared array of its own, as large as another one, behind all others."""
    buffer = at(document, named(document, "buffers", like))
    size = {"f32": 4, "bf16": 2}[buffer["dtype"]]
    for extent in buffer["shape"]:
        size *= extent
    place = -(-document["launch"]["shared_bytes"] // 128) * 128
    spare = buffer | {"name": name, "offset": place}
    return [Edit("insert", ("buffers", 0), spare), Edit("replace", ("launch", "shared_bytes"), place + size)]


def mixed_sum(rng: Random) -> Mutant:
    """24: the residual is stored by one step and added to in place by others; who adds changes, a barrier between may
    go."""
    base = draw(rng, PLAIN, warps=2)
    document = base.document
    path = rng.choice([p for p, s in steps(document) if s["op"]["op"] == "add_residual"])
    step = at(document, path)
    edits = [Edit("replace", (*path, "op", "role"), "w0" if step["op"]["role"] == "all" else "all")]
    if step["signals"] and rng.random() < 0.9:
        edits += arrivals(document, step["signals"][0]["counter"], base.warps)
    if rng.random() < 0.15:
        return base, edits + move(document, find(document, "embed"), rng.choice((1, 2)))
    return base, edits + _fewer_barriers(rng, document, (0, 0, 1))


def missing_start(rng: Random) -> Mutant:
    """25: the residual is a running sum that each token starts anew; the start is lost, late, or made elsewhere."""
    base = draw(rng, PLAIN)
    document = base.document
    embed = find(document, "embed")
    which = rng.random()
    if which < 0.15:
        return base, [Edit("remove", embed)]
    if which < 0.3:  # once per launch, in place of once per token
        return base, [Edit("remove", embed), Edit("insert", (*embed[:-3], int(embed[-3])), at(document, embed))]
    if which < 0.5:
        return base, [*_fewer_barriers(rng, document, (0, 0, 1)), *move(document, embed, 1)]
    edits = _spare(document, "residual", "sum")
    document = apply(document, edits)[0]
    using = [p for p, s in steps(document) if "residual" in s["op"]]
    changed = using if rng.random() < 0.7 else rng.sample(using, rng.randrange(1, len(using)))
    edits += [Edit("replace", (*p, "op", "residual"), "sum") for p in changed]
    return base, edits + _fewer_barriers(rng, document, (0, 0, 1))


DRAINS = ("gemv", "store_rows", "add_residual", "swiglu", "argmax_rows", "attend", "merge", "combine", "rope_append")


def drained_late(rng: Random) -> Mutant:
    """26: a step that reads a slot of shared memory comes behind the barrier that gives the slot back, or the barrier
    before the reader."""
    base = draw(rng, PLAIN, warps=rng.choice((1, 2, 2, 2)))
    document = base.document
    reader = rng.choice([p for p, s in steps(document) if s["op"]["op"] in DRAINS])
    if rng.random() < 0.3:
        meeting = rng.choice(barriers(document))
        return base, move(document, meeting, rng.choice((-2, -1, 1, 2)))
    spare = [Edit("insert", after(reader), {"op": _meeting(document), "waits": [], "signals": []})]
    if rng.random() < 0.4:  # there twice: one may come too early
        document = apply(document, spare)[0]
        return base, spare + move(document, after(reader), rng.choice((-2, -1, 1)))
    return base, move(document, reader, rng.choice((1, 2)))


def _meeting(document: Json) -> Json:
    return next(s["op"] for _, s in steps(document) if s["op"]["op"] == "barrier")


def deeper_ring(rng: Random) -> Mutant:
    """27: the ring's depth changes, and it has memory and mbarriers for some depth."""
    base = draw(rng, PLAIN)
    document = base.document
    depth = int(document["streams"][0]["slots"])
    slots = max(1, depth + rng.choice((-2, -1, 1, 1, 2)))
    return base, [Edit("replace", ("streams", 0, "slots"), slots), *ring_room(base, depth + rng.choice((0, 1, 1, 2)))]


def ring_room(base: Subject, slots: int, columns: int | None = None) -> list[Edit]:
    """Ring and mbarriers behind everything else, with room for so many slots of chunks of so many columns."""
    document = base.document
    stream, end, edits = document["streams"][0], document["launch"]["shared_bytes"], []
    for name, each, extent in (("ring", 2, 8 * (columns or stream["chunk_k"])), ("full", 4, 2)):
        if stream[name] is None:
            continue
        path, shape = named(document, "buffers", stream[name]), [base.warps, slots, extent]
        place = -(-end // 128) * 128
        edits += [Edit("replace", (*path, "shape"), shape), Edit("replace", (*path, "offset"), place)]
        end = place + each * shape[0] * shape[1] * shape[2]
    return [*edits, Edit("replace", ("launch", "shared_bytes"), end)]


def first_phase(rng: Random) -> Mutant:
    """28: what a counter starts with and what its waits take it to start with: the first phase may count as complete
    before anything has arrived."""
    base = draw(rng, PLAIN)
    document = base.document
    names = sorted({w["counter"] for _, w in waits(document)})
    edits: list[Edit] = []
    for name in rng.sample(names, rng.choice((1, 1, 2))):
        start = rng.choice((1, 2, base.workers, 2 * base.workers))
        taken = rng.choice((start, start, start, 0, start - 1, start + 1))
        waiting, _ = users(document, name)
        edits.append(Edit("replace", (*named(document, "counters", name), "init"), start))
        for path in waiting:
            reach = at(document, (*path, "at_least"))
            edits.append(Edit("replace", (*path, "at_least"), reach | {"1": reach.get("1", 0) + taken}))
    return base, edits


def other_arrivals(rng: Random) -> Mutant:
    """29: one arrival per worker, per warp or per thread, and waits that count on one of these."""
    base = draw(rng, PLAIN, warps=2)
    document = base.document
    giving = [(p, s) for p, s in steps(document) if s["signals"]]
    path, step = rng.choice(giving)
    name = step["signals"][0]["counter"]
    warps = rng.random() < 0.6 and len(step["signals"]) == 1
    each, counted = (base.warps if warps else 1), rng.choice((1, 1, 32))
    edits = [Edit("replace", (*path, "op", "role"), "all")] if warps else []
    edits += [Edit("replace", (*path, "signals", i, "add"), counted) for i, s in enumerate(step["signals"]) if _one(s)]
    right = each * counted
    taken = rng.choice((right, right, right, 1, base.warps, 32))
    return base, edits + arrivals(document, name, taken)


def _one(signal: Json) -> bool:
    return bool(signal["add"] == 1)


def other_participants(rng: Random) -> Mutant:
    """29: a barrier counts other warps, is joined by others, or both at once: then it is a barrier of fewer warps under
    an id of its own, which may or may not be enough; or it is there twice."""
    base = draw(rng, FENCED)
    document = base.document
    path = rng.choice(barriers(document))
    if rng.random() < 0.5:
        return base, [Edit("insert", after(path), at(document, path))]
    fewer: Json = {"role": "w0", "agents": 1, "id": 9}
    wrong: Json = {"agents": at(document, path)["op"]["agents"] + rng.choice((-1, 1, 31))}
    changed = at(document, path)["op"] | rng.choice((fewer, fewer, wrong))
    return base, [Edit("replace", (*path, "op"), changed)]


def wrong_arrivals(rng: Random) -> Mutant:
    """29: a counter or a barrier of warps counts other arrivals than there are: warps, threads, or one."""
    return other_arrivals(rng) if rng.random() < 0.6 else other_participants(rng)


def ragged_chunk(rng: Random) -> Mutant:
    """30: copies become longer; the last one of a row may then be ragged, and slots may hold what is copied or not."""
    shape = rng.choice(((2, 2, 1), (2, 1, 2), (3, 2, 1), (4, 1, 1)))
    base = subject(rng.choice(PLAIN), *shape, ffn=rng.choice((96, 128, 128, 128)))
    document = base.document
    stream = document["streams"][0]
    was, columns = stream["chunk_k"], rng.choice((32, 32, 64, 64, 64, 96, 128))
    slots = max(1, stream["slots"] * was // columns) if rng.random() < 0.6 else stream["slots"]
    slots = min(slots, 16)
    edits = [Edit("replace", ("streams", 0, "chunk_k"), columns), Edit("replace", ("streams", 0, "slots"), slots)]
    room = max(1, slots + rng.choice((-1, 0, 0, 0, 0, 1)))
    return base, edits + ring_room(base, room, rng.choice((columns, columns, columns, was)))


def repeated_tags(rng: Random) -> Mutant:
    """32: a reader tells phases apart by their tags; they may repeat, or fall back, one or two phases later."""
    base = draw(rng, ("tagged",), layers=rng.choice((1, 2, 2)))
    document = base.document
    names = [b["name"] for b in document["buffers"] if b["tagged"] and "l" in b["tag"]]
    slope, layer = rng.choice(((1, 1), (2, 1), (2, 0), (3, 1), (3, 2), (4, 2), (1, 0), (2, 2), (4, 3), (2, -1)))
    tag = {"t": slope, "l": layer, "1": rng.choice((0, 1, 1, 2, 7))}
    changed = names if rng.random() < 0.3 else rng.sample(names, rng.choice((1, 1, 2)))
    return base, [Edit("replace", (*named(document, "buffers", n), "tag"), tag) for n in changed]


PRODUCTS = ("qkv", "o", "gate_up", "down", "lm_head")


def undrained(rng: Random) -> Mutant:
    """33: products take turns at two arrays of partial sums; the next may begin while the last is still read."""
    base = draw(rng, PLAIN, warps=2)
    edits = _spare(base.document, "part", "part.2")
    document = apply(base.document, edits)[0]
    second = set(rng.sample(PRODUCTS, rng.choice((1, 2, 2, 3))))
    current = ""
    for path, step in steps(document):
        current = step["op"].get("matrix", "") if step["op"]["op"] == "gemv" else current
        if "part" in step["op"] and current in second:
            edits.append(Edit("replace", (*path, "op", "part"), "part.2"))
    return base, edits + _fewer_barriers(rng, document, (0, 1, 1))


def wrong_refill(rng: Random) -> Mutant:
    """34: a product holds copies back; the refill that issues them comes too late, or issues other copies."""
    base = draw(rng, ("tagged",))
    document = base.document
    path = rng.choice([p for p, s in steps(document) if s["op"]["op"] == "gemv"])
    slots = rng.choice((2, 3, 4))
    held = max(1, slots - rng.choice((-1, 0, 0, 0, 0, 1, 2)))
    most = max(1, held + rng.choice((-2, -1, 0, 0, 1, 60)))
    body = at(document, path[:-1])
    place = min(len(body), int(path[-1]) + rng.choice((1, 1, 2, 3, 5, 8, 12)))
    role = rng.choice(("all", "all", "all", "all", "w0"))
    refill = {
        "op": {"op": "refill", "role": role, "stream": "weights", "most": min(most, 64)},
        "waits": [],
        "signals": [],
    }
    edits = [
        Edit("replace", (*named(document, "streams", "weights"), "slots"), slots),
        Edit("replace", (*path, "op", "deferred"), held),
        Edit("insert", (*path[:-1], place), refill),
    ]
    return base, edits + ([Edit("insert", (*path[:-1], place), refill)] if rng.random() < 0.3 else [])
