"""Random plans in random layouts, with shares dealt anew, some of them empty, and edits, one after the other.

    python -m tests.adversarial.random_layouts --seconds 600 --seed 1 --holes holes/

What `amk verify` calls SAFE is decided by the oracle over one token and over four, and all layers, and one in so many
is run by the numpy judge. A hole is one that either refutes; it is written, and the run ends with 1. The neighbourhood
edits texts of plans; here layers, workers and sequences differ from each other, edits are those of somebody who tunes,
and several go together: instances of counters that nobody used are there, and some workers use them. What is SAFE is
edited again and again, so that each plan is the start of a walk, far from where plans are. Plans of four or eight
warps have roles for ranges of them (`within_worker`). Of some, each warp has ops of its own; of some, a few warps have
all rings; of some, each program has its layers in another layout.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from math import prod
from random import Random
from typing import Any

from pydantic import ValidationError

from amk.adversary.edits import Json, at, meeting, steps
from amk.adversary.neighbourhood.bases import NEOX, TAGGED
from amk.adversary.specialised import specialised
from amk.judges.judge import judge
from amk.judges.oracle.flatten import TooBig
from amk.judges.oracle.judge import rule
from amk.planner.settings import Handoff, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import verify
from tests.adversarial import random_run, within_worker
from tests.adversarial.layouts import (
    FENCED,
    ends_apart,
    in_pairs,
    layer_loops,
    one_cell,
    own_programs,
    planned,
    rotated,
    token_loop,
    two_loops,
    unrolled,
)

TOKENS = 4
RUN = 3
"""One in so many that are SAFE is also run."""
WALK = 40
"""Edited schedules, SAFE or not, that start from one plan, on average."""
MODELS: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {"heads": 4, "kv_heads": 2, "qk_norm": True}, {"qkv_bias": True, "hidden": 64},
    NEOX, NEOX | {"parallel": False, "activation": "gelu-tanh"},
)  # fmt: skip
"""Of which `deal` finds plans: what their layers have else than the smallest model's."""
SHARES = ("hidden", "gate_up", "qkv", "lm_head")
SYNC = ("wait", "signal", "barrier")


def settings(rng: Random) -> Settings:
    ways: tuple[Handoff, ...] = ("fenced", "fenced", "tagged", "mixed", "narrow")
    way = rng.choice(ways)
    base = replace(
        FENCED if way == "fenced" else TAGGED,
        handoff=way,
        pollers=rng.choice(("one", "all")),
        hint_at=rng.choice(("published", "summed", "drained")),
        hint_slack=rng.choice((0, 2, 8)),
        wide_epilogue=rng.choice((0, 4096)),
        reduce_from=rng.choice((None, 2)),
        sampling=rng.choice(("greedy",) * 8 + ("temperature", "top-p")),
    )
    if rng.random() < 0.2:
        base = replace(base, chunk_bytes=512, k_parts=2, x_parts=rng.choice((1, 2)))
    form = rng.random()
    if form < 0.3:
        return replace(base, batch=rng.choice((2, 3, 4)), live=rng.random() < 0.5)
    return replace(base, rows=rng.choice((2, 3))) if form < 0.45 else base


def deal(document: Json, rng: Random) -> None:
    """Row groups of matrices go to other workers; some get none. Arrays that hold them grow."""
    workers, tables = document["launch"]["workers"], document["tables"]
    for share in SHARES:
        if rng.random() < 0.3:
            continue
        total = sum(tables[f"{share}.count"])
        inner = (rng.choice((0, total // 2, total, rng.randint(0, total))) for _ in range(workers - 1))
        cuts = [0, *sorted(inner), total]
        tables[f"{share}.first"] = cuts[:-1]
        tables[f"{share}.count"] = [b - a for a, b in pairwise(cuts)]
    end = document["launch"]["shared_bytes"]
    for buffer in document["buffers"]:
        if buffer["space"] == "shared" and buffer["name"] in ("part", "residual"):
            place, least = (0, 40) if buffer["name"] == "part" else (-1, document["model"]["hidden"])
            buffer["shape"][place], buffer["offset"] = least, -(-end // 128) * 128
            end = buffer["offset"] + Buffer.model_validate_json(json.dumps(buffer)).bytes
    document["launch"]["shared_bytes"] = -(-end // 128) * 128


def each_its_own(document: Json, rng: Random) -> Json:
    """Every program has its layers in another layout."""
    length = min(len(loop["body"]) for loop in layer_loops(document))

    def turned(document: Json) -> Json:
        return rotated(document, rng.randrange(1, length))

    ways = (deepcopy, unrolled, in_pairs, two_loops, ends_apart, turned, turned)
    alone = [rng.choice(ways)(document | {"programs": [program]}) for program in document["programs"]]
    return document | {"programs": [program for one in alone for program in one["programs"]]}


def laid_out(document: Json, rng: Random, layers: int, handoff: str) -> Json:
    if layers >= 3 and handoff == "fenced" and rng.random() < 0.6:
        document = one_cell(document) if rng.random() < 0.4 else document
        if rng.random() < 0.4:
            return each_its_own(own_programs(document), rng)
        document = rng.choice((unrolled, in_pairs, two_loops, ends_apart))(document)
    return own_programs(document) if rng.random() < 0.4 else document


def _sync(document: Json, rng: Random) -> tuple[Json, int]:
    """A list of steps, and the place of a wait, signal or barrier in it."""
    path = rng.choice([path for path, step in steps(document) if step["op"]["op"] in SYNC])
    return at(document, path[:-1]), int(path[-1])


def leave_out(document: Json, rng: Random) -> None:
    body, place = _sync(document, rng)
    body.pop(place)


def move(document: Json, rng: Random) -> None:
    body, place = _sync(document, rng)
    step = body.pop(place)
    body.insert(max(0, place + rng.choice((-5, -3, -2, -1, 1, 2, 3, 5))), step)


def twice(document: Json, rng: Random) -> None:
    body, place = _sync(document, rng)
    body.insert(place, deepcopy(body[place]))


def other_role(document: Json, rng: Random) -> None:
    _, step = rng.choice(list(steps(document)))
    step["op"]["role"] = rng.choice([role["name"] for role in document["roles"]])


def _entry(document: Json, rng: Random, kind: str) -> Json:
    return rng.choice([entry for _, step in steps(document) for entry in step[kind]])


def threshold(document: Json, rng: Random) -> None:
    entry, workers = _entry(document, rng, "waits"), document["launch"]["workers"]
    if isinstance(entry["at_least"], dict):
        symbol = rng.choice([*entry["at_least"], "1"])
        entry["at_least"][symbol] = entry["at_least"].get(symbol, 0) + rng.choice((-workers, -1, 1, workers))


def amounts(document: Json, rng: Random) -> None:
    """One worker gives a signal that was another's."""
    counter, workers = rng.choice(document["counters"])["name"], document["launch"]["workers"]
    column = [1] * workers
    more, less = rng.sample(range(workers), 2)
    column[more], column[less] = 2, 0
    document["tables"]["given"] = column
    for _, step in steps(document):
        for entry in step["signals"]:
            if entry["counter"] == counter and entry["add"] == 1:
                entry["add"] = {"given": 1}


def handoff(document: Json, rng: Random) -> None:
    """A counter orders memory where it was a hint, or the other way round."""
    counter = rng.choice(document["counters"])
    fenced = counter["handoff"] == "hint"
    counter["handoff"] = "fenced" if fenced else "hint"
    for _, step in steps(document):
        for kind, strong in (("waits", "acquire"), ("signals", "release")):
            for entry in step[kind]:
                if entry["counter"] == counter["name"]:
                    entry["order"] = strong if fenced else "relaxed"


def one_counter_for_two(document: Json, rng: Random) -> None:
    one, other = rng.sample(document["counters"], 2)
    for _, step in steps(document):
        for entry in (*step["waits"], *step["signals"]):
            if entry["counter"] == one["name"] and len(one["shape"]) == len(other["shape"]):
                entry["counter"] = other["name"]


def two_in_one(document: Json, rng: Random) -> None:
    """One counter for two hand-offs of a token. Who waits for the later one waits for both."""
    known = {counter["name"]: (counter["shape"], counter["handoff"]) for counter in document["counters"]}
    signals = [entry["counter"] for _, step in steps(document) for entry in step["signals"]]
    one, other = sorted(rng.sample(sorted({*signals}), 2), key=signals.index)
    waits = {name: [w for _, s in steps(document) for w in s["waits"] if w["counter"] == name] for name in (one, other)}
    (each,), (more,) = ({wait["at_least"]["t"] for wait in waits[name]} for name in (one, other))
    if known[one] != known[other]:
        raise ValueError("counters of two kinds")
    for wait in (*waits[one], *waits[other]):
        least = wait["at_least"]
        wait["at_least"] = least | {"t": each + more, "1": least.get("1", 0) + each * (wait["counter"] == other)}
    for _, step in steps(document):
        for entry in (*step["waits"], *step["signals"]):
            entry["counter"] = one if entry["counter"] == other else entry["counter"]


def one_array(document: Json, rng: Random) -> None:
    """One array in place of two of a kind, as large as the larger one."""
    kinds: dict[tuple[str, ...], list[Json]] = {}
    for buffer in document["buffers"]:
        if buffer["role"] == "scratch" and buffer["name"] not in ("ring", "full"):
            kinds.setdefault((buffer["space"], buffer["dtype"], str(buffer["tagged"])), []).append(buffer)
    one, other = rng.sample(rng.choice([each for each in kinds.values() if len(each) > 1]), 2)
    for _, step in steps(document):
        op = step["op"]
        op |= {field: other["name"] for field, value in op.items() if value == one["name"] and field != "role"}
    other["shape"] = max(one["shape"], other["shape"], key=prod)


def step_elsewhere(document: Json, rng: Random) -> None:
    """Any step changes places with its neighbour."""
    body = token_loop(rng.choice(document["programs"]))["body"]
    inner = [node["body"] for node in body if "body" in node]
    body = rng.choice([body, *inner])
    place = rng.randrange(len(body) - 1)
    body[place], body[place + 1] = body[place + 1], body[place]


def _term(document: Json, rng: Random, expr: Json) -> Json:
    """The expression with one more term: of a table, which may be new, of the worker, of a loop, or a constant."""
    workers = document["launch"]["workers"]
    document["tables"]["drawn"] = [rng.choice((0, 0, 1, 2)) for _ in range(workers)]
    symbol = rng.choice(("drawn", "drawn", "drawn", "worker", "agent", "l", "t", "1", *document["tables"]))
    terms = dict(expr) if isinstance(expr, dict) else {"1": expr} if expr else {}
    terms[symbol] = terms.get(symbol, 0) + rng.choice((-2, -1, 1, 2, 2))
    terms = {name: factor for name, factor in terms.items() if factor}
    return terms if set(terms) - {"1"} else terms.get("1", 0)


def _place(entry: Json, rng: Random) -> int:
    """A dimension of the index, mostly the one that moves with the layer."""
    moving = [n for n, expr in enumerate(entry["index"]) if isinstance(expr, dict) and "l" in expr]
    return rng.choice(moving) if moving and rng.random() < 0.8 else rng.randrange(len(entry["index"]))


def room(document: Json, rng: Random) -> None:
    """A counter, or all, have instances that nobody uses."""
    every = document["counters"]
    for counter in every if rng.random() < 0.5 else [rng.choice(every)]:
        counter["shape"][rng.randrange(len(counter["shape"]))] += rng.choice((1, 2, 4, 8))


def index(document: Json, rng: Random) -> None:
    """A wait or a signal is of another instance, of some workers or agents alone; there may be room for it."""
    entry = _entry(document, rng, rng.choice(("waits", "signals")))
    place = _place(entry, rng)
    entry["index"][place] = _term(document, rng, entry["index"][place])
    counter = next(counter for counter in document["counters"] if counter["name"] == entry["counter"])
    counter["shape"][place] += rng.choice((0, 2, 8, 8))


def another(document: Json, rng: Random) -> None:
    """A step waits for, or signals, one instance more."""
    kind = rng.choice(("waits", "signals"))
    step = rng.choice([step for _, step in steps(document) if step[kind]])
    entry = deepcopy(rng.choice(step[kind]))
    place = _place(entry, rng)
    entry["index"][place] = _term(document, rng, entry["index"][place])
    step[kind].append(entry)
    counter = next(counter for counter in document["counters"] if counter["name"] == entry["counter"])
    counter["shape"][place] += rng.choice((0, 2, 8, 8))


def counter_for_barrier(document: Json, rng: Random) -> None:
    """The warps of each worker meet by a counter of their own instead of a barrier; some may wait for less."""
    barriers = [path for path, step in steps(document) if step["op"]["op"] == "barrier"]
    path, launch = rng.choice(barriers), document["launch"]
    body, place = at(document, path[:-1]), int(path[-1])
    if body[place]["op"]["agents"] != launch["warps"] or any(c["name"] == "own" for c in document["counters"]):
        return
    document["tables"]["late"] = [rng.choice((0, 0, 1)) for _ in range(launch["workers"])]
    around = [at(document, path[:n]) for n in range(1, len(path))]
    looped = any(isinstance(node, dict) and node.get("var") == "l" for node in around)
    index: list[Json] = [{"worker": 1}, {"l": 1}] if looped else [{"worker": 1}]
    warps = launch["warps"]
    least = {"t": warps, "1": warps} | ({"late": -warps} if rng.random() < 0.7 else {})
    body[place : place + 1] = meeting("own", index, least)
    shape = [launch["workers"], document["model"]["layers"]][: len(index)]
    document["counters"].append({"name": "own", "shape": shape, "scope": "gpu", "handoff": "fenced", "init": 0})


def late(document: Json, rng: Random) -> None:
    """Some workers wait for less, or for more."""
    entry, launch = _entry(document, rng, "waits"), document["launch"]
    if isinstance(entry["at_least"], dict):
        document["tables"]["later"] = [rng.choice((0, 0, 1)) for _ in range(launch["workers"])]
        entry["at_least"]["later"] = rng.choice((-launch["workers"], -1, 1))


def previous(document: Json, rng: Random) -> None:
    """A wait is for no more than what the token before gave."""
    entry = _entry(document, rng, "waits")
    if isinstance(entry["at_least"], dict):
        entry["at_least"].pop("1", None)


def pace(document: Json, rng: Random) -> None:
    """All meet across tokens: everybody signals somewhere, and waits elsewhere for what the token before gave."""
    if any(counter["name"] == "pace" for counter in document["counters"]):
        return
    launch = document["launch"]
    document["counters"].append({"name": "pace", "shape": [1], "scope": "gpu", "handoff": "fenced", "init": 0})
    signal, wait = meeting("pace", [0], {"t": launch["workers"] * launch["warps"]})
    for program in document["programs"]:
        body = token_loop(program)["body"]
        body.insert(rng.choice((len(body), rng.randrange(len(body)))), deepcopy(signal))
        body.insert(rng.choice((0, rng.randrange(len(body)))), deepcopy(wait))


def tag(document: Json, rng: Random) -> None:
    """Flag words of a buffer carry other numbers."""
    tagged = [buffer for buffer in document["buffers"] if buffer.get("tag") is not None]
    buffer = rng.choice(tagged)
    buffer["tag"] = _term(document, rng, buffer["tag"])


def layer(document: Json, rng: Random) -> None:
    """A step is about another layer, or another norm."""
    fields = [(step["op"], name) for _, step in steps(document) for name in ("layer", "index") if name in step["op"]]
    op, name = rng.choice(fields)
    op[name] = _term(document, rng, op[name])


def owed(document: Json, rng: Random) -> None:
    """A product holds back another number of refills, or another number goes out."""
    fields = [(step["op"], name) for _, step in steps(document) for name in ("deferred", "most") if name in step["op"]]
    op, name = rng.choice(fields)
    op[name] = max(0, op[name] + rng.choice((-1, 1, 1, 2)))


EDITS: tuple[Callable[[Json, Random], None], ...] = (
    leave_out, leave_out, move, move, twice, other_role, threshold, amounts, handoff, one_counter_for_two,
    two_in_one, two_in_one, one_array, one_array, step_elsewhere, room, index, index, another, another, tag, layer,
    owed, counter_for_barrier, counter_for_barrier, late, previous, pace,
)  # fmt: skip


def started(rng: Random) -> Json:
    """A plan in some layout. AmkError for settings that cannot be planned."""
    chosen, layers, form = settings(rng), rng.choice((1, 2, 3, 4, 5)), rng.random()
    if form < 0.3:
        workers = rng.choice((2, 3, 4))
        chosen = replace(chosen, warps=1, batch=1, live=False, rows=1, kv_splits=1, overlay=False, reduce_from=None)
        chosen = replace(chosen, sampling="greedy", k_parts=None, x_parts=1)
        document = specialised(planned(chosen, layers, workers, heads=workers, kv_heads=workers))
    else:
        chosen = replace(chosen, warps=rng.choice((4, 4, 8)) if form < 0.6 else 2)
        document = planned(chosen, layers, workers=rng.choice((2, 3, 4, 5)), **rng.choice(MODELS))
        deal(document, rng)
    within_worker.every_range(document)
    if form > 0.3 and rng.random() < 0.3:
        within_worker.drained_by_some(document, rng)
    return laid_out(document, rng, layers, chosen.handoff or "")


def edited(document: Json, rng: Random) -> tuple[list[str], Json]:
    """(names of the edits, the document with them). An error if it has not what is edited."""
    document, warps = deepcopy(document), document["launch"]["warps"]
    edits = (*EDITS, *(within_worker.EDITS * 2 if warps > 2 else ()))
    choices = rng.choices(edits, k=rng.choice((1, 1, 2, 2, 3)))
    for edit in choices:
        edit(document, rng)
    return [edit.__name__ for edit in choices], document


def drawn_next(rng: Random, last: Json | None = None) -> tuple[list[str], Json]:
    """The next one that can be planned, or `last` edited once more, with what is edited."""
    while True:
        try:
            return edited(last, rng) if last is not None else ([], started(rng))
        except (AmkError, IndexError, KeyError, StopIteration, ValueError):
            continue


def looked_at(document: Json, run: bool) -> tuple[str, str]:
    """(verdict, who refutes what is SAFE and why; empty if nobody does)."""
    try:
        schedule = Schedule.model_validate_json(json.dumps(document))
        verdict = verify(schedule, timeout_s=20)
    except (ValidationError, AmkError):
        return "refused", ""
    if not verdict.safe:
        return verdict.status, ""
    try:
        rulings = [rule(schedule, tokens) for tokens in (1, TOKENS)]
    except TooBig:
        return "SAFE", ""
    for ruling in rulings:
        if ruling.status == "UNSAFE":
            return "SAFE", f"oracle: {ruling.why}"
    outcome = judge(schedule, 2) if run else None
    return "SAFE", f"run: {outcome.kind} {outcome.why}" if outcome is not None and outcome.status == "refuted" else ""


class Walk:
    """Draws one schedule after another; what is SAFE is edited on, until a new one is begun."""

    def __init__(self) -> None:
        self.last: Json | None = None

    def __call__(self, rng: Random, counts: Counter[str]) -> random_run.Look:
        names, document = drawn_next(rng, self.last)
        verdict, wrong = looked_at(document, counts["SAFE"] % RUN == 0)
        self.last = document if verdict == "SAFE" else self.last
        self.last = None if rng.random() < 1 / WALK else self.last
        return names, document, verdict, wrong


if __name__ == "__main__":
    sys.exit(random_run.main(__doc__, Walk(), "SAFE"))
