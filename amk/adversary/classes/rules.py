"""Classes 36 to 44: the memory model, epochs, positions, launches."""

from __future__ import annotations

from random import Random

from amk.adversary.classes.sync import Mutant
from amk.adversary.edits import Edit, Json, Path, after, apply, named, steps
from amk.adversary.subjects import FENCED, draw, move, signals, subject, users, waits
from amk.targets.target import STATIC_SMEM_PER_BLOCK


def early_release(rng: Random) -> Mutant:
    """36: the signalling step moves before the barrier behind which all writers are done, or stays behind it."""
    base = draw(rng, ("wide", "wide", "fenced"))
    path, _ = rng.choice(signals(base.document))
    step = path[:-2]
    if rng.random() < 0.3:
        return base, move(base.document, step, rng.choice((-2, -1, 1, 2)))
    meeting = next(s for _, s in steps(base.document) if s["op"]["op"] == "barrier")
    spare = [Edit("insert", step, meeting) for _ in range(rng.choice((1, 2)))]
    document = apply(base.document, spare)[0]
    return base, spare + move(document, after(step, len(spare)), rng.choice((-3, -2, -1, -1, 0)))


def relaxed_poll(rng: Random) -> Mutant:
    """37: polls and signals without acquire or release, on fenced counters or on hints."""
    base = draw(rng, ("fenced", "wide", "heads", "tagged", "tagged"))
    waiting = [p for p, _ in waits(base.document)]
    giving = [p for p, _ in signals(base.document)]
    edits = []
    for path in rng.sample(waiting + giving, rng.choice((1, 1, 2))):
        strong = "acquire" if "waits" in path else "release"
        edits.append(Edit("replace", (*path, "order"), rng.choice((strong, "relaxed", "relaxed"))))
    return base, edits


def narrow_scope(rng: Random) -> Mutant:
    """38: the scope of a counter: too narrow, wider than needed, or narrow where one worker alone uses it."""
    base = draw(rng, (*FENCED, "tagged"))
    document = base.document
    edits = []
    if rng.random() < 0.5:
        own = {"name": "own", "shape": [base.workers], "scope": "cta", "handoff": "fenced", "init": 0}
        body: Path = next(p[:-1] for p, s in steps(document) if s["op"]["op"] == "swiglu")
        give = {"counter": "own", "index": [{"worker": 1}], "add": 1, "order": "release"}
        edits.append(Edit("insert", ("counters", 0), own))
        step = {"op": {"op": "signal", "role": "w0"}, "waits": [], "signals": [give]}
        take = {"counter": "own", "index": [rng.choice((0, {"worker": 1}, {"worker": 1}))]}
        reach = {"at_least": {"t": base.layers, "l": 1, "1": 1}, "order": "acquire"}
        wait = {"op": {"op": "wait", "role": "w0"}, "waits": [take | reach], "signals": []}
        edits += [Edit("insert", (*body, 2), wait), Edit("insert", (*body, 2), step)]
    if not edits or rng.random() < 0.4:
        count = len(document["counters"])
        place = ("counters", rng.randrange(count) + (1 if edits else 0), "scope")
        edits.append(Edit("replace", place, rng.choice(("cta", "sys"))))
    return base, edits


def proxy_fence(rng: Random) -> Mutant:
    """39: slots refilled by the async proxy without the fence; copies of the older engine need none."""
    shape = rng.choice(((2, 2, 1), (2, 1, 2), (4, 1, 1)))
    base = subject(rng.choice((*FENCED, "tagged")), *shape, gpu=rng.choice(("h200", "l4")))
    fenced = rng.random() < 0.5
    edits = [Edit("replace", ("streams", 0, "refill_fence"), fenced)]
    if rng.random() < 0.4:
        path, _ = rng.choice(waits(base.document))
        edits.append(Edit("remove", path[:-2]))
    return base, edits


def constant_written(rng: Random) -> Mutant:
    """40: memory that the launch writes is declared constant, hence read by non-coherent loads."""
    base = draw(rng, (*FENCED, "tagged"))
    document = base.document
    if rng.random() < 0.5:
        like = rng.choice(("h_mid", "act"))
        extra = next(b for b in document["buffers"] if b["name"] == like) | {
            "name": "spare",
            "role": "constant",
            "tagged": False,
            "tag": None,
        }
        return base, [Edit("insert", ("buffers", 0), extra)]
    written = [i for i, b in enumerate(document["buffers"]) if b["space"] == "global" and b["role"] != "constant"]
    edits = [Edit("replace", ("buffers", i, "role"), "constant") for i in [rng.choice(written)]]
    number = int(edits[0].path[1])
    if document["buffers"][number]["tagged"]:
        edits += [Edit("replace", ("buffers", number, field), v) for field, v in (("tagged", False), ("tag", None))]
    return base, edits


def early_epoch(rng: Random) -> Mutant:
    """41: the next token's signals may count for this one: thresholds, or the edge between tokens, change."""
    base = draw(rng, ("fenced", "wide"))
    document, k = base.document, base.workers
    which = rng.random()
    if which < 0.45:
        path, _ = rng.choice(waits(document))
        slope, reach = rng.choice((k - 1, k, k, k + 1)), rng.choice((k - 1, k, k, k + 1))
        return base, [Edit("replace", (*path, "at_least"), {"t": slope, "1": reach})]
    if which < 0.7:
        name = rng.choice(("h_out", "best", "act"))
        lag = rng.choice((0, 0, 1))
        waiting, _ = users(document, name)
        counter = named(document, "counters", name)
        start = rng.choice((0, k)) if lag else 0
        edits = [Edit("replace", (*p, "at_least"), {"t": k, "1": k - lag * k + start}) for p in waiting]
        return base, [*edits, Edit("replace", (*counter, "init"), start)]
    path, _ = rng.choice([(p, w) for p, w in waits(document) if w["counter"] in ("best", "h_out")])
    return base, move(document, path[:-2], rng.choice((-3, -2, -1, 1, 2)))


def reset_race(rng: Random) -> Mutant:
    """42: a signal zeroes the counter while others may still wait; or thresholds are as if it did, when nothing does;
    or a fresh counter instead."""
    base = draw(rng, ("fenced", "wide"))
    document, k = base.document, base.workers
    name = rng.choice(("attn", "h_mid", "act", "h_out", "best"))
    (waiting,), (giving,) = users(document, name)
    if rng.random() < 0.2:
        return base, [Edit("insert", (*giving, "action"), "reset")]
    if rng.random() < 0.5:
        return base, [Edit("replace", (*waiting, "at_least"), {"1": k} if rng.random() < 0.8 else k)]
    start = rng.randrange(1, 4)
    counter = (*named(document, "counters", name), "init")
    reach = {"t": k, "1": k + rng.choice((start, start, start - 1, 0))}
    each = rng.choice((1, 1, 2))
    reach = {"t": k * each, "1": reach["1"] + k * (each - 1)}
    return base, [
        Edit("replace", counter, start),
        Edit("replace", (*waiting, "at_least"), reach),
        Edit("replace", (*giving, "add"), each),
    ]


def split_count(rng: Random) -> Mutant:
    """43: how many splits there are, how long a block is, and how long the context, one off or not."""
    base = draw(rng, (*FENCED, "tagged"))
    document, kv = base.document, base.document["kv"]
    which = rng.random()
    if which < 0.25:
        context = kv["block"] * rng.randint(1, 3) + rng.choice((-1, 0, 1))
        return base, _context(document, max(context, 4))
    if which < 0.75:
        return base, [Edit("replace", ("kv", "splits"), max(1, kv["splits"] + rng.choice((-1, 1, 1))))]
    return base, [Edit("replace", ("kv", "block"), rng.choice((1, 2, 3, 5, 6, 12)))]


def _context(document: Json, context: int) -> list[Edit]:
    edits = [Edit("replace", ("kv", "context"), context)]
    for i, buffer in enumerate(document["buffers"]):
        axis = {"k_cache": 2, "v_cache": 2, "rope": 0, "prompt": 0}.get(buffer["name"])
        if axis is not None:
            edits.append(Edit("replace", ("buffers", i, "shape", axis), context))
    return edits


def launch_limits(rng: Random) -> Mutant:
    """44: one worker too many, registers or shared memory at the limit, a counter or a token's sum about to wrap."""
    base = draw(rng, (*FENCED, "tagged"))
    document, launch = base.document, base.document["launch"]
    which = rng.randrange(6)
    if which == 0:
        return base, [Edit("replace", ("target", "sms"), base.workers + rng.choice((-1, 0, 1)))]
    if which == 1:
        ctas = rng.randint(1, 6)
        limit = document["target"]["regs_per_sm"] // 4 // (-(-ctas * launch["warps"] // 4) * 32) // 8 * 8
        registers = min(255, max(16, limit + rng.choice((-8, 0, 1, 8))))
        pair = (("ctas_per_sm", ctas), ("registers", registers))
        return base, [Edit("replace", ("launch", field), value) for field, value in pair]
    if which == 2:
        room = document["target"]["smem_per_block"] - STATIC_SMEM_PER_BLOCK
        return base, [Edit("replace", ("launch", "shared_bytes"), room + rng.choice((-1, 0, 1)))]
    if which == 3:
        name = rng.choice(("attn", "h_mid", "act"))
        start = 2**31 - rng.choice((0, 1, 2, 1000))
        slope = {"t": base.workers, "1": base.workers + start}
        waiting, _ = users(document, name)
        edits = [Edit("replace", (*p, "at_least"), slope) for p in waiting]
        return base, [*edits, Edit("replace", (*named(document, "counters", name), "init"), start)]
    if which == 4:
        most = 2**31 // rng.choice((base.workers, base.workers, max(base.workers - 1, 1)))
        add = most + rng.choice((0, 0, 1))
        waiting, giving = users(document, rng.choice(("attn", "h_mid", "act")))
        reach = {"t": base.workers * add, "1": base.workers * add}
        edits = [Edit("replace", (*p, "at_least"), reach) for p in waiting]
        return base, [*edits, *(Edit("replace", (*p, "add"), add) for p in giving)]
    return base, [Edit("replace", ("launch", "cooperative"), rng.random() < 0.5)]
