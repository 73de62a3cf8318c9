"""Random small plans whose splits, blocks, rows and sequences do not fit each other evenly, with no to three edits.

    python -m tests.adversarial.random_positions --seconds 600 --seed 1 --holes holes/

The context ends within a block, splits are served by workers in any order or are more than there are blocks, steps of
several rows cross from block to block, sequences stand apart. What `amk verify` calls SAFE, and what the checker
accepts although it is not, is decided by the oracle at every position of the context, whichever guesses are right, and
one in so many is run by the numpy judge. A hole is one that either refutes.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from random import Random

from pydantic import ValidationError

from amk.adversary.edits import Json, at, steps
from amk.adversary.neighbourhood.bases import SMALLEST, TAGGED
from amk.judges.judge import judge
from amk.judges.oracle.flatten import TooBig
from amk.judges.oracle.judge import last_start, rule
from amk.judges.oracle.touched import Place
from amk.planner.decode import plan
from amk.planner.settings import Handoff, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.verify import verify
from tests.adversarial import random_layouts, random_run
from tests.adversarial.layouts import FENCED, own_programs
from tests.checker.offer import reasons

MOST_PLACES = 400
"""Of a launch of sequences that stand apart: so many combinations of positions at most."""


def settings(rng: Random) -> Settings:
    ways: tuple[Handoff, ...] = ("fenced", "tagged", "tagged", "mixed", "narrow")
    way = rng.choice(ways)
    base = replace(
        FENCED if way == "fenced" else TAGGED,
        handoff=way,
        warps=rng.choice((1, 2, 2, 3, 4)),
        kv_splits=rng.choice((None, None, 1, 2, 3)),
        pollers=rng.choice(("one", "all")),
        hints=rng.choice(("all", "many", "few", "act")),
        hint_slack=rng.choice((0, 2, 8)),
        hint_at=rng.choice(("published", "summed", "drained")),
        wide_epilogue=rng.choice((0, 4096)),
        reduce_from=rng.choice((None, 2)),
        attends=rng.choice(("first", "spread", "light")),
        overlay=rng.random() < 0.7,
        head_handoff=rng.random() < 0.2,
        sampling=rng.choice(("greedy",) * 6 + ("temperature", "top-k-top-p")),
        max_ring_bytes=16384,
        max_tokens=16,
    )
    form = rng.random()
    if form < 0.25:
        return replace(base, batch=rng.choice((2, 2, 3)), live=rng.random() < 0.7)
    if form < 0.75:
        rows = rng.choice((2, 2, 3, 4))
        tree = rng.random() < 0.2 and base.sampling == "greedy"
        return replace(base, rows=rows, accepts=not tree and rng.random() < 0.6, tree=tree)
    return base


def planned(rng: Random) -> Json:
    chosen = settings(rng)
    block = max(rng.choice((1, 2, 3, 3, 4)), chosen.rows)
    context = rng.choice((2, 3)) * block + rng.choice((0, 0, 1, 2, -1))
    heads, kv_heads = rng.choice(((1, 1), (2, 1), (2, 2), (4, 2), (3, 1)))
    model = SMALLEST.model_copy(
        update={
            "layers": rng.choice((1, 1, 2, 3)), "heads": heads, "kv_heads": kv_heads, "max_context": max(context, 2),
            "hidden": rng.choice((32, 64)), "qk_norm": rng.random() < 0.2,
        }
    )  # fmt: skip
    workers = rng.choice((2, 3, 4, 5)) * (2 if chosen.batch > 1 and rng.random() < 0.5 else 1)
    schedule = plan(
        model, load_target("h200"), settings=replace(chosen, kv_block=block), workers=workers,
        max_context=max(context, 2),
    )  # fmt: skip
    return json.loads(schedule.model_dump_json())


SERVED = ("attn.head", "attn.split")
RINGS = ("ring", "full")


def served_by_others(document: Json, rng: Random) -> None:
    """The workers of attention change places, tables of what they signal with them."""
    tables = document["tables"]
    places = list(range(document["launch"]["workers"]))
    rng.shuffle(places)
    for name, column in tables.items():
        if name.startswith("attn."):
            tables[name] = [column[place] for place in places]


def other_blocks(document: Json, rng: Random) -> None:
    """Blocks of another size, as many splits as before."""
    document["kv"]["block"] = max(1, document["kv"]["block"] + rng.choice((-1, 1, 1, 2)))


def other_context(document: Json, rng: Random) -> None:
    context = document["kv"]["context"]
    to = max(1, context + rng.choice((-3, -2, -1, 1, 2)))
    document["kv"]["context"] = to
    for buffer in document["buffers"]:
        if buffer["name"] in ("k_cache", "v_cache", "rope", "prompt"):
            buffer["shape"] = [to if size == context else size for size in buffer["shape"]]


def one_split_less(document: Json, rng: Random) -> None:
    """The last split has no worker."""
    tables, last = document["tables"], document["kv"]["splits"] - 1
    for worker, part in enumerate(tables["attn.split"]):
        if part == last and rng.random() < 0.7:
            tables["attn.head"][worker] = -1
            tables["attn.split"][worker] = 0


def twice_served(document: Json, rng: Random) -> None:
    tables = document["tables"]
    a, b = rng.sample(range(document["launch"]["workers"]), 2)
    for name in SERVED:
        tables[name][a] = tables[name][b]


def near_attention(document: Json, rng: Random) -> None:
    """Barriers and waits around attention go."""
    ops = ("rope_append", "attend", "merge", "reduce_splits", "combine", "stage_attention", "store_rows")
    path = rng.choice([path for path, step in steps(document) if step["op"]["op"] in ops])
    body, place = at(document, path[:-1]), int(path[-1])
    near = [n for n in range(max(0, place - 3), min(len(body), place + 4)) if "op" in body[n]]
    near = [n for n in near if body[n]["op"]["op"] in ("barrier", "wait", "signal") or body[n]["waits"]]
    n = rng.choice(near)
    if body[n]["op"]["op"] in ("barrier", "wait", "signal"):
        body.pop(n)
    else:
        body[n]["waits"] = []


def all_hints(document: Json, rng: Random) -> None:
    """Waits that order nothing go, all or those of one counter."""
    hints = [counter["name"] for counter in document["counters"] if counter["handoff"] == "hint"]
    gone = set(hints) if rng.random() < 0.3 else {rng.choice(hints)}
    for _, step in steps(document):
        step["waits"] = [wait for wait in step["waits"] if wait["counter"] not in gone]


def attention_by_one(document: Json, rng: Random) -> None:
    """A warp of its own, or the first one, does a step of attention."""
    ops = ("rope_append", "merge", "reduce_splits", "stage_attention", "store_rows", "select", "embed", "attend")
    path = rng.choice([path for path, step in steps(document) if step["op"]["op"] in ops])
    step = at(document, path)
    step["op"]["role"] = rng.choice(("w0", "w1", "all"))
    if step["op"]["op"] == "attend":
        for _, other in steps(document):
            if "attend_agents" in other["op"]:
                other["op"]["attend_agents"] = 1


def overlaid(document: Json, rng: Random) -> None:
    """An array of shared memory lies on a part of another one, perhaps on its last row only."""
    shared = [b for b in document["buffers"] if b["space"] == "shared" and b["name"] not in RINGS]
    a, b = rng.sample(shared, 2)
    size_a, size_b = (Buffer.model_validate_json(json.dumps(each)).bytes for each in (a, b))
    rows = document["batch"] * document.get("rows", 1)
    step = max(16, size_b // rows // 16 * 16)
    to = b["offset"] + rng.choice((size_b - step, size_b - 16, 16, step, 16 - size_a, step - size_a, 0))
    a["offset"] = max(0, to // 16 * 16)
    end = document["launch"]["shared_bytes"]
    document["launch"]["shared_bytes"] = max(end, -(-(a["offset"] + size_a) // 128) * 128)


def longer_rows(document: Json, rng: Random) -> None:
    """A buffer has more than it needs in each row."""
    buffer = rng.choice(
        [b for b in document["buffers"] if b["role"] == "scratch" and b["name"] not in ("ring", "full")]
    )
    buffer["shape"][-1] += rng.choice((4, 8, 16, 32))
    if buffer["space"] == "shared":
        end = document["launch"]["shared_bytes"]
        buffer["offset"] = -(-end // 128) * 128
        size = Buffer.model_validate_json(json.dumps(buffer)).bytes
        document["launch"]["shared_bytes"] = -(-(buffer["offset"] + size) // 128) * 128


def swapped(document: Json, rng: Random) -> None:
    """Two steps near attention change places."""
    ops = ("rope_append", "attend", "merge", "reduce_splits", "combine", "stage_attention", "store_rows")
    path = rng.choice([path for path, step in steps(document) if step["op"]["op"] in ops])
    body, place = at(document, path[:-1]), int(path[-1])
    other = place + rng.choice((-3, -2, -1, 1, 2, 3))
    if 0 <= other < len(body) and "op" in body[other]:
        body[place], body[other] = body[other], body[place]


OWN: tuple[Callable[[Json, Random], None], ...] = (
    served_by_others, served_by_others, other_blocks, other_context, one_split_less, twice_served, near_attention,
    near_attention, near_attention, all_hints, all_hints, all_hints, attention_by_one, attention_by_one, overlaid,
    overlaid, overlaid, longer_rows, swapped, swapped,
)  # fmt: skip


def drawn(rng: Random) -> tuple[list[str], Json]:
    document = planned(rng)
    if rng.random() < 0.6:
        random_layouts.deal(document, rng)
    if document["launch"]["warps"] > 1:
        document["roles"].append({"name": "w1", "first": 1, "count": 1})
    if all(role["name"] != "w0" for role in document["roles"]):
        document["roles"].append({"name": "w0", "first": 0, "count": 1})
    if rng.random() < 0.3:
        document = own_programs(document)
    pool = OWN if rng.random() < 0.7 else (*OWN, *random_layouts.EDITS)
    edits = rng.choices(pool, k=rng.choice((0, 1, 1, 1, 2, 2, 3)))
    for edit in edits:
        edit(document, rng)
    return [edit.__name__ for edit in edits], document


def drawn_next(rng: Random) -> tuple[list[str], Json]:
    while True:
        try:
            return drawn(rng)
        except (AmkError, IndexError, ValueError, KeyError):
            continue


def places(schedule: Schedule, tokens: int, rng: Random) -> list[Place]:
    last = last_start(schedule, tokens)
    if not schedule.live:
        return list(range(last + 1))
    every: list[Place] = list(product(range(last + 1), repeat=schedule.batch))
    return every if len(every) <= MOST_PLACES else rng.sample(every, MOST_PLACES)


def refuted(schedule: Schedule, rng: Random, run: bool) -> str:
    """Who refutes it and why; empty if nobody does."""
    for tokens in (1, 3) if schedule.rows > 2 and schedule.accepts else (1, 4):
        if tokens * schedule.rows > schedule.kv.context:
            tokens = max(1, schedule.kv.context // schedule.rows)
        try:
            ruling = rule(schedule, tokens, places(schedule, tokens, rng))
        except TooBig:
            continue
        if ruling.status == "UNSAFE":
            return f"oracle: {ruling.why}"
    outcome = judge(schedule, 3) if run else None
    return f"run: {outcome.kind} {outcome.why}" if outcome is not None and outcome.status == "refuted" else ""


def looked_at(document: Json, rng: Random, run: bool) -> tuple[str, str]:
    """(verdict, who refutes what is SAFE or accepted and why)."""
    try:
        schedule = Schedule.model_validate_json(json.dumps(document))
        verdict = verify(schedule, timeout_s=20)
    except (ValidationError, AmkError):
        return "refused", ""
    if verdict.safe:
        return "SAFE", refuted(schedule, rng, run)
    codes = sorted({d.code for d in verdict.diagnostics if d.severity == "error"})
    said = f"{verdict.status} {' '.join(codes)}"
    try:
        accepted = "" in reasons(schedule)
    except AmkError:
        return said, ""
    if not accepted:
        return said, ""
    wrong = refuted(schedule, rng, True)
    return f"{said} accepted", f"checker: {wrong}" if wrong else ""


def look(rng: Random, counts: Counter[str]) -> random_run.Look:
    names, document = drawn_next(rng)
    return names, document, *looked_at(document, rng, counts["SAFE"] % 3 == 0)


if __name__ == "__main__":
    sys.exit(random_run.main(__doc__, look, "SAFE", ending=" accepted"))
