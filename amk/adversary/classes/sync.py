"""Classes 1 to 15: queues, thresholds, weights, counters."""

from __future__ import annotations

from random import Random

from amk.adversary.edits import Edit, Json, Path, after, apply, at, steps
from amk.adversary.subjects import (
    FENCED,
    Subject,
    draw,
    move,
    reshare,
    split_programs,
    subject,
    table,
    users,
    waits,
)

Mutant = tuple[Subject, list[Edit]]


def queue_inversion(rng: Random) -> Mutant:
    """1: one of two groups of workers waits, or signals, at another place of its queue."""
    base = draw(rng)
    edits = split_programs(base.document, rng.randrange(1, base.workers))
    document = apply(base.document, edits)[0]
    if rng.random() < 0.6:  # once more, elsewhere: needless behind its first place, a cycle before the own signal
        path = rng.choice([p for p, w in waits(document) if p[1] == 1 and w["counter"] != "best"])
        place = (*path[:-3], rng.randrange(len(at(document, path[:-3])) + 1))
        return base, [*edits, Edit("insert", place, at(document, path[:-2]))]
    moved = [p for p, s in steps(document) if p[1] == 1 and (s["waits"] or s["signals"])]
    return base, edits + move(document, rng.choice(moved), rng.choice((-5, -4, -3, -2, -1, 1)))


def chain(base: Subject, rng: Random, inverted: bool) -> list[Edit]:
    """Every worker waits for the next one's signal and gives its own: a cycle unless somebody gives first."""
    document, k = base.document, base.workers
    layers = base.layers
    body: Path = next(p[:-1] for p, s in steps(document) if s["op"]["op"] == "store_rows")
    length = len(at(document, body))
    early, late = sorted((rng.randrange(1, length), rng.randrange(1, length)))
    wait = {"op": {"op": "wait", "role": "w0"}, "waits": [_chained({"next": 1}, layers)], "signals": []}
    signal = {"op": {"op": "signal", "role": "w0"}, "waits": [], "signals": [_signal()]}
    counter = {"name": "chain", "shape": [k], "scope": "gpu", "handoff": "fenced", "init": 0}
    edits = [table(document, "next", [(w + 1) % k for w in range(k)]), Edit("insert", ("counters", 0), counter)]
    first, second = (wait, signal) if inverted else (signal, wait)
    return [*edits, Edit("insert", (*body, late), second), Edit("insert", (*body, early), first)]


def _chained(index: Json, layers: int) -> Json:
    return {"counter": "chain", "index": [index], "at_least": {"t": layers, "l": 1, "1": 1}, "order": "acquire"}


def _signal() -> Json:
    return {"counter": "chain", "index": [{"worker": 1}], "add": 1, "order": "release"}


def queue_cycle(rng: Random) -> Mutant:
    """2: k workers in a ring, k = 3..8; one of them may break the cycle by giving before it takes."""
    base = subject(rng.choice(FENCED), rng.choice((3, 4, 5, 8)), 1, 1)
    edits = chain(base, rng, inverted=rng.random() < 0.75)
    document = apply(base.document, edits)[0]
    if rng.random() < 0.5:
        edits += split_programs(document, 1)
        document = apply(base.document, edits)[0]
        path = next(p for p, s in steps(document) if p[1] == 0 and any(x["counter"] == "chain" for x in s["signals"]))
        edits += move(document, path, rng.choice((-40, -9, -4, -2, -1, 2)))
    return base, edits


def weighted(base: Subject, counter: str, amounts: list[int], reach: int) -> list[Edit]:
    """Worker w adds amounts[w]; waits ask for `reach` increments of their token and all of the tokens before."""
    document, total = base.document, sum(amounts)
    waiting, giving = users(document, counter)
    edits = [Edit("replace", (*p, "at_least"), {"t": total, "1": reach}) for p in waiting]
    even = len(set(amounts)) == 1
    add: Json = amounts[0] if even else {"weights": 1}
    edits += [Edit("replace", (*p, "add"), add) for p in giving]
    return edits if even else [table(document, "weights", amounts), *edits]


def _counter(rng: Random, base: Subject) -> str:
    names = sorted({w["counter"] for _, w in waits(base.document)})
    return str(rng.choice(names))


def threshold_low(rng: Random) -> Mutant:
    """3: the threshold of a multi-producer counter, lowered; with weights above 1 there is room below."""
    base = draw(rng, ("fenced", "wide"))
    each = rng.choice((1, 1, 2, 3))
    low = rng.choice((0, 1, 1, each - 1, each))
    return base, weighted(base, _counter(rng, base), [each] * base.workers, each * base.workers - low)


def threshold_high_ragged(rng: Random) -> Mutant:
    """4: the last worker has less to add; the threshold still counts on a full share."""
    base = draw(rng, ("fenced", "wide"))
    each = rng.choice((2, 3, 4))
    last = rng.randrange(1, each)
    amounts = [each] * (base.workers - 1) + [last]
    reach = rng.choice((each * base.workers, sum(amounts) + 1, sum(amounts), sum(amounts) - last + 1))
    return base, weighted(base, _counter(rng, base), amounts, reach)


def _head_weights(rng: Random, base: Subject, noise: bool) -> tuple[list[Edit], int]:
    """Weights per kv head with one sum for all heads; (edits, the sum). Only owners are needed, others may add too."""
    columns = {n: c for n, c in base.document["tables"].items() if n.startswith("qkv.to.")}
    total = rng.randint(6, 9)
    edits = []
    for name, column in columns.items():
        owners = [w for w, n in enumerate(column) if n]
        drawn = [rng.randint(1, 2) if w in owners else int(noise and rng.random() < 0.5) for w in range(len(column))]
        drawn[owners[-1]] += total - sum(drawn)
        if min(drawn) < 0 or drawn[owners[-1]] == 0:
            return _head_weights(rng, base, False)
        edits.append(Edit("replace", ("tables", name), drawn))
    return edits, total


def partial_foreign(rng: Random) -> Mutant:
    """5: a partial threshold over producers of which only some are needed."""
    base = draw(rng, ("heads",), least=3)
    edits, total = _head_weights(rng, base, noise=True)
    waiting, _ = users(base.document, "qkv")
    reach = total - rng.choice((0, 0, 1, 1, 2))
    return base, edits + [Edit("replace", (*p, "at_least"), {"t": total, "1": reach}) for p in waiting]


def partial_prefix(rng: Random) -> Mutant:
    """6: each worker counts its own phases on its own counter; a prefix of one owner's signals is exact."""
    base = subject(rng.choice(("fenced", "wide")), *rng.choice(((2, 2, 1), (2, 1, 2), (3, 2, 1), (4, 1, 1))))
    document, layers, k = base.document, base.layers, base.workers
    phases = ["qkv", "attn", "h_mid", "act"]
    target = rng.choice(phases)
    counter = {"name": "own", "shape": [k], "scope": "gpu", "handoff": "fenced", "init": 0}
    edits = []
    for phase in phases:
        (path,) = users(document, phase)[1]
        edits.append(Edit("replace", path, _signal() | {"counter": "own"}))
        (path,) = users(document, phase)[0]
        reach = phases.index(phase) + 1 - (rng.choice((0, 0, 1, 2)) if phase == target else 0)
        wait = _chained(0, layers) | {"counter": "own", "at_least": {"t": 4 * layers, "l": 4, "1": reach}}
        many = [wait | {"index": [w]} for w in range(k) if phase != target or k < 3 or w or rng.random() < 0.8]
        edits.append(Edit("replace", path[:-1], many))
    return base, [*edits, Edit("insert", ("counters", 0), counter)]


def partial_count(rng: Random) -> Mutant:
    """7: weights and a threshold such that counting alone says who must have signalled."""
    base = draw(rng, ("fenced", "wide"))
    amounts = [rng.randint(1, 4) for _ in range(base.workers)]
    return base, weighted(base, _counter(rng, base), amounts, sum(amounts) - rng.choice((0, 1, 2, min(amounts) - 1)))


def signals_twice(rng: Random) -> Mutant:
    """8: a step signals twice; the thresholds may or may not know."""
    base = draw(rng, ("fenced", "wide"))
    counter, times = _counter(rng, base), rng.choice((2, 3))
    waiting, giving = users(base.document, counter)
    edits = []
    for path in giving:
        edits += [Edit("insert", path, at(base.document, path)) for _ in range(times - 1)]
    total = times * base.workers
    slope = rng.choice((total, total, base.workers))
    reach = rng.choice((slope, total, total - 1, total - times))
    return base, edits + [Edit("replace", (*p, "at_least"), {"t": slope, "1": reach}) for p in waiting]


def weight_hides(rng: Random) -> Mutant:
    """9: one worker's weight makes up for another that gives nothing; harmless if that one writes nothing either."""
    base = draw(rng, ("fenced", "wide"), least=3)
    idle = [w for w, head in enumerate(base.document["tables"]["attn.head"]) if head < 0]
    silent = rng.choice(idle) if idle and rng.random() < 0.7 else rng.randrange(base.workers)
    counter = "attn" if silent in idle and rng.random() < 0.85 else _counter(rng, base)
    amounts = [1] * base.workers
    amounts[silent] = 0
    amounts[(silent + 1) % base.workers] = 2
    return base, weighted(base, counter, amounts, base.workers)


def other_counter(rng: Random) -> Mutant:
    """10: some workers give to another counter, whose total somebody else makes up for."""
    base = draw(rng, ("fenced", "wide"))
    here, there = rng.sample(["attn", "h_mid", "act", "h_out"], 2)
    edits = split_programs(base.document, rng.randrange(1, base.workers))
    document = apply(base.document, edits)[0]
    mine = {n: next(p for p in users(document, n)[1] if p[1] == 1) for n in (here, there)}
    first = at(document, ("programs", 0, "count"))
    rest = base.workers - first
    if rng.random() < 0.5:  # exchange the names everywhere: another name for the same thing
        waiting = {n: users(document, n) for n in (here, there)}
        for n, other in ((here, there), (there, here)):
            edits += [Edit("replace", (*p, "counter"), other) for part in waiting[n] for p in part]
        if rng.random() < 0.3:
            edits.append(Edit("replace", (*mine[here], "counter"), here))
        return base, edits
    edits.append(Edit("replace", (*mine[here], "counter"), there))
    if base.workers % first == 0 or rest:
        giving = next(p for p in users(document, here)[1] if p[1] == 0)
        share = rng.choice((base.workers // first, 1))
        edits.append(Edit("replace", (*giving, "add"), share))
    return base, edits


def shared_cell(rng: Random) -> Mutant:
    """11: index arithmetic puts the hand-offs of all layers on one cell, or turns the order of the layers' cells."""
    base = draw(rng, ("fenced", "wide"), layers=2)
    counter, k, layers = _counter(rng, base), base.workers, base.layers
    waiting, giving = users(base.document, counter)
    index = at(base.document, (*waiting[0], "index"))
    zero = [0] * len(index)
    if rng.random() < 0.4:  # layers exchange their cells: as good as before
        turned: Json = [{"l": -1, "1": layers - 1}, *index[1:]] if counter != "best" else index
        both = rng.random() < 0.7
        edits = [Edit("replace", (*p, "index"), turned) for p in giving]
        return base, edits + [Edit("replace", (*p, "index"), turned) for p in waiting if both]
    reach: Json = {"t": layers * k, "l": k, "1": k} if rng.random() < 0.6 else {"t": k, "1": k}
    if counter == "best":
        reach = {"t": k, "1": k}
    edits = [Edit("replace", (*p, "index"), zero) for p in (*giving, *waiting)]
    return base, edits + [Edit("replace", (*p, "at_least"), reach) for p in waiting]


def redundant_wait(rng: Random) -> Mutant:
    """12: a wait is dropped; it may have been there twice, or be implied by the chain of others."""
    base = draw(rng, (*FENCED, "tagged"))
    document = base.document
    path, _ = rng.choice(waits(document))
    step = path[:-2]
    if rng.random() < 0.5:
        again = after(step, rng.choice((1, 2, 3)))
        if int(again[-1]) <= len(at(document, step[:-1])):
            return base, [Edit("insert", again, at(document, step)), *_dropped(rng, step, again)]
    return base, [Edit("remove", step)]


def _dropped(rng: Random, one: Path, two: Path) -> list[Edit]:
    """Drop the first or the second of two equal waits, or both."""
    which = rng.random()
    if which < 0.4:
        return [Edit("remove", one)]
    return [Edit("remove", two)] + ([Edit("remove", one)] if which > 0.8 else [])


def masked_by_order(rng: Random) -> Mutant:
    """13: a barrier or wait is dropped that the order of one warp made needless, and steps change warps."""
    base = draw(rng, ("fenced", "wide", "heads"), warps=rng.choice((1, 2)))
    document = base.document
    meeting = [p for p, s in steps(document) if s["op"]["op"] == "barrier" or s["waits"]]
    edits = [Edit("remove", rng.choice(meeting))]
    if rng.random() < 0.5:
        document = apply(document, edits)[0]
        moved = [p for p, s in steps(document) if s["op"]["op"] in ("store_rows", "add_residual", "swiglu")]
        path = (*rng.choice(moved), "op", "role")
        edits.append(Edit("replace", path, "w0" if at(document, path) == "all" else "all"))
    return base, edits


def wait_moved(rng: Random) -> Mutant:
    """14: a wait moves to an earlier or later step."""
    base = draw(rng)
    path, _ = rng.choice(waits(base.document))
    step = path[:-2]
    if rng.random() < 0.3:
        return base, move(base.document, step, rng.choice((-3, -2, -1, 1, 2, 3, 4)))
    holder = after(step, rng.choice((1, 1, 2, 2, 3, 4)))
    body = at(base.document, step[:-1])
    if int(holder[-1]) >= len(body) or "op" not in body[int(holder[-1])]:
        holder = after(step)
    held = at(base.document, step)["waits"]
    return base, [Edit("replace", (*holder, "waits"), held), Edit("remove", step)]


def equality_wait(rng: Random) -> Mutant:
    """15: a wait looks for one value, which may have passed between two looks: a counter's by its comparison, or the
    tag of a word, whose hint lets the next writer come too early for a worker that has no rows of its own."""
    if rng.random() < 0.2:
        base = draw(rng)
        path, _ = rng.choice(waits(base.document))
        return base, [Edit("insert", (*path, "compare"), rng.choice(("==", "==", "==", "!=", "<")))]
    base = draw(rng, ("tagged",), least=3)
    document = base.document
    edits: list[Edit] = []
    for key in rng.sample(("hidden", "gate_up", "qkv"), rng.choice((1, 1, 2, 3, 3))):
        counts = list(document["tables"][f"{key}.count"])
        counts[-2] += counts[-1]
        counts[-1] = 0
        edits += reshare(apply(document, edits)[0], key, counts)
    held = waits(document)
    for path, wait in rng.sample(held, min(len(held), rng.choice((0, 1, 1, 2)))):
        reach = wait["at_least"]
        edits.append(Edit("replace", (*path, "at_least"), reach | {"1": reach["1"] - rng.choice((1, base.workers))}))
    return base, edits
