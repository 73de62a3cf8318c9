"""Classes 16 to 22: who touches which bytes, in plans."""

from __future__ import annotations

from random import Random

from amk.adversary.classes.sync import Mutant
from amk.adversary.edits import Edit, Json, Path, apply, at, find, named, steps
from amk.adversary.subjects import FENCED, draw, move, reshare, split_programs, subject, table, users, waits


def _renamed(document: Json, old: str, new: str, ops: tuple[str, ...] | None = None) -> list[Edit]:
    """Ops use another buffer in place of one; ops None: all of them."""
    return [
        Edit("replace", (*p, "op", field), new)
        for p, s in steps(document)
        for field, value in s["op"].items()
        if field != "op" and value == old and (ops is None or s["op"]["op"] in ops)
    ]


def reused_activation(rng: Random) -> Mutant:
    """16: two hand-offs use one buffer, so a later write follows earlier reads; a wait between may be missing."""
    base = draw(rng, ("fenced", "wide"))
    edits = _renamed(base.document, *rng.choice((("h_mid", "h_out"), ("h_out", "h_mid"))))
    if rng.random() < 0.5:
        document = apply(base.document, edits)[0]
        path, _ = rng.choice(waits(document))
        moved = move(document, path[:-2], rng.choice((-2, 2, 3)))
        edits += [Edit("remove", path[:-2])] if rng.random() < 0.6 else moved
    return base, edits


def split_partials(rng: Random) -> Mutant:
    """17: which worker computes which split: permuted, or two on one slot."""
    base = draw(rng, FENCED, least=3)
    tables = base.document["tables"]
    pairs = list(zip(tables["attn.head"], tables["attn.split"], strict=True))
    if rng.random() < 0.5:
        rng.shuffle(pairs)
    else:
        one, two = rng.sample(range(len(pairs)), 2)
        pairs[one] = pairs[two]
    edits = [table(base.document, "attn.head", [h for h, _ in pairs])]
    edits.append(table(base.document, "attn.split", [s for _, s in pairs]))
    return base, [*edits, table(base.document, "attn.gate", [max(h, 0) for h, _ in pairs])]


def straddling_tile(rng: Random) -> Mutant:
    """18: the rows of one head come from several workers, each with its own counter; the reader names some of them."""
    base = subject("heads", *rng.choice(((3, 2, 1), (4, 1, 1), (4, 2, 1), (5, 1, 1))))
    document, k, layers = base.document, base.workers, base.layers
    heads = [[w for w, n in enumerate(document["tables"][f"qkv.to.{h}"]) if n] for h in (0, 1)]
    wanted = [list(heads[max(h, 0)]) for h in document["tables"]["attn.head"]]
    room = max(map(len, wanted))
    columns = [[own[i] if i < len(own) else own[-1] for own in wanted] for i in range(room)]
    if rng.random() < 0.9:  # one worker no longer waits for one of those whose rows it reads
        worker = rng.randrange(k)
        lost, other = rng.choice(wanted[worker]), rng.randrange(k)
        for column in columns:
            column[worker] = other if column[worker] == lost else column[worker]
    counter = {"name": "rows", "shape": [layers, k], "scope": "gpu", "handoff": "fenced", "init": 0}
    waiting, giving = users(document, "qkv")
    signal = {"counter": "rows", "index": [{"l": 1}, {"worker": 1}], "add": 1, "order": "release"}
    edits = [table(document, f"from.{i}", column) for i, column in enumerate(columns)]
    merged = document["tables"] | {f"from.{i}": column for i, column in enumerate(columns)}
    edits = [Edit("replace", ("tables",), merged), Edit("insert", ("counters", 0), counter)]
    edits.append(Edit("replace", giving[0][:-1], [signal]))
    wait = {"counter": "rows", "at_least": {"t": 1, "1": 1}, "order": "acquire"}
    many = [wait | {"index": [{"l": 1}, {f"from.{i}": 1}]} for i in range(room)]
    return base, [*edits, Edit("replace", waiting[0][:-1], many)]


def overlapping_rows(rng: Random) -> Mutant:
    """19: shares of rows change; neighbours overlap by one, or leave one out, or fit."""
    base = draw(rng, ("fenced", "wide", "tagged"))
    key = rng.choice(("qkv", "hidden", "gate_up", "lm_head"))
    counts = list(base.document["tables"][f"{key}.count"])
    giver, taker = rng.sample(range(base.workers), 2)
    amount = rng.randint(1, max(1, counts[giver] - 1))
    counts[giver] -= amount
    counts[taker] += amount
    edits = reshare(base.document, key, counts)
    if rng.random() < 0.6:
        worker, by = rng.randrange(base.workers), rng.choice((-1, 1))
        column = apply(base.document, edits)[0]["tables"]
        which = rng.choice((f"{key}.first", f"{key}.count"))
        values = list(column[which])
        values[worker] = max(0, values[worker] + by)
        edits.append(Edit("replace", ("tables", which), values))
    return base, edits


def stale_read(rng: Random) -> Mutant:
    """20: the right order on the wrong object: another layer's counter, another buffer, another layer's values."""
    base = draw(rng, ("fenced", "wide"), layers=rng.choice((1, 2)))
    document = base.document
    path, wait = rng.choice([(p, w) for p, w in waits(document) if w["counter"] != "best"])
    which = rng.random()
    if which < 0.4:
        index = [rng.choice((0, base.layers - 1, {"l": 1})), *wait["index"][1:]]
        return base, [Edit("replace", (*path, "index"), index)]
    if which < 0.7:
        h = rng.choice(("h_mid", "h_out"))
        readers = [p for p, s in steps(document) if s["op"]["op"] == "stage_norm"]
        return base, [Edit("replace", (*rng.choice(readers), "op", "h"), h)]
    layered = [p for p, s in steps(document) if "layer" in s["op"]]
    return base, [Edit("replace", (*rng.choice(layered), "op", "layer"), rng.choice((0, {"l": 1})))]


def in_place_residual(rng: Random) -> Mutant:
    """21: the residual stream is updated in place while a second consumer still reads it."""
    base = draw(rng, ("fenced", "wide"))
    document = base.document
    edits = _renamed(document, "h_mid", "h_out") if rng.random() < 0.7 else []
    document = apply(document, edits)[0]
    writer = find(document, "add_residual", matrix=rng.choice(("o", "down")))
    readers = [p for p, s in steps(document) if s["op"]["op"] == "stage_norm"]
    path = rng.choice([writer, *readers])
    return base, edits + (move(document, path, rng.choice((-2, -1, 1, 2))) if rng.random() < 0.6 else [])


APART = (("x", "att"), ("x", "q"), ("part", "att"), ("part", "q"), ("att", "q"), ("q", "mix"), ("part", "mix"))
"""Arrays that are often not needed at the same time."""


def aliased_pages(rng: Random) -> Mutant:
    """22: two shared arrays at one place; their lifetimes may be disjoint, on some workers only."""
    base = draw(rng, FENCED)
    document = base.document
    names = ["x", "part", "att", "q", "residual", "ssq"]
    one, two = rng.sample(names, 2) if rng.random() < 0.6 else rng.choice(APART)
    size = {b["name"]: b for b in document["buffers"]}
    if _bytes(size[one]) > _bytes(size[two]):
        one, two = two, one
    place = at(document, (*named(document, "buffers", two), "offset"))
    edits = [Edit("replace", (*named(document, "buffers", one), "offset"), place)]
    if rng.random() < 0.3 and base.workers > 1:
        edits += split_programs(document, 1)
        changed = apply(document, edits)[0]
        barriers: list[Path] = [p for p, s in steps(changed) if p[1] == 1 and s["op"]["op"] == "barrier"]
        edits.append(Edit("remove", rng.choice(barriers)))
    return base, edits


def _bytes(buffer: Json) -> int:
    total = {"f32": 4, "bf16": 2}.get(buffer["dtype"], 4)
    for extent in buffer["shape"]:
        total *= extent
    return total
