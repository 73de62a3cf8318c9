"""Plans with nothing to synchronise, in which steps are moved, copied, left out, or taken from plans of other models.

    python -m tests.adversarial.random_frames --seconds 600 --seed 1 --holes holes/

Most mistakes break an order as well, and are refused for that whatever else is wrong. One warp of one worker runs its
steps one after the other, so here it is the rest that has to refuse them: what a value is, which ops a model has, what
is in registers, what a launch leaves, chunks and their order. Any step may go anywhere, also before and behind the
tokens. The checker alone is offered its best certificate; what it accepts, or `amk verify` calls SAFE, is run by the
numpy judge. A hole is one that is refuted; it is written, and the run ends with 1.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from pydantic import ValidationError

from amk.adversary.edits import Json, steps
from amk.adversary.neighbourhood.bases import CONTEXT, NEOX, SMALLEST, TAGGED
from amk.judges.judge import judge
from amk.models.model_spec import LayerSlice
from amk.planner.decode import plan
from amk.planner.formats import BF16, Formats, formats
from amk.planner.settings import PHASED, Settings
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.verify import verify
from tests.adversarial import random_run
from tests.adversarial.layouts import own_programs, token_loop
from tests.checker.offer import reasons

ONE = replace(PHASED, warps=1)
HEADS = NEOX | {"kv_heads": 2}


def _plan_of(settings: Settings, workers: int = 1, weights: Formats = BF16, **model: Any) -> Json:
    spec = SMALLEST.model_copy(update={"layers": 1} | model)
    settings = replace(settings, kv_block=max(CONTEXT // 3, settings.rows), max_tokens=CONTEXT)
    schedule = plan(spec, load_target("h200"), settings=settings, formats=weights, workers=workers, max_context=CONTEXT)
    return json.loads(schedule.model_dump_json())


FRAME_BASES: dict[str, Callable[[], Json]] = {
    "one layer": lambda: _plan_of(ONE),
    "three layers": lambda: _plan_of(ONE, layers=3),
    "flag words": lambda: _plan_of(replace(TAGGED, warps=1)),
    "drawing": lambda: _plan_of(replace(ONE, sampling="top-k-top-p")),
    "a program each": lambda: own_programs(_plan_of(ONE, workers=2)),
    "a program each, drawing": lambda: own_programs(_plan_of(replace(ONE, sampling="top-p"), workers=2)),
    "drawing from all": lambda: _plan_of(replace(ONE, sampling="temperature")),
    "rows": lambda: _plan_of(replace(PHASED, warps=4, rows=3)),
    "rows that accept": lambda: _plan_of(replace(PHASED, warps=4, rows=2, accepts=True)),
    "live batch": lambda: _plan_of(replace(PHASED, warps=2, batch=2, live=True), workers=2),
    "batch in parts": lambda: _plan_of(replace(PHASED, warps=2, batch=2, k_parts=2, chunk_bytes=512), workers=2),
    "codes": lambda: _plan_of(ONE, weights=formats("int8", "int8-g64")),
    "scales apart": lambda: _plan_of(replace(ONE, scales_apart=True), weights=formats("fp8", "int4-g64")),
    "LayerNorm": lambda: _plan_of(ONE, workers=2, **HEADS),
    "LayerNorm, one after the other": lambda: _plan_of(
        ONE, workers=2, **HEADS | {"parallel": False, "activation": "gelu-tanh"}
    ),
    "slice": lambda: _plan_of(ONE, slice=LayerSlice(first=1, of=3)),
    "refills held back": lambda: _plan_of(
        replace(ONE, run_ahead=True, slots=2, held_refills=1.0, first_refills=0.5),
    ),
}
"""With as few warps and workers as can be planned."""


@cache
def base(name: str) -> Json:
    """Shared, so edit copies."""
    return FRAME_BASES[name]()


@cache
def ops() -> dict[str, list[Json]]:
    """By kind, the ops of all of them."""
    found: dict[str, list[Json]] = {}
    for name in FRAME_BASES:
        for _, step in steps(base(name)):
            each = found.setdefault(step["op"]["op"], [])
            each += [step["op"]] if step["op"] not in each else []
    return found


@cache
def buffers() -> dict[str, Json]:
    return {buffer["name"]: buffer for name in reversed(FRAME_BASES) for buffer in base(name)["buffers"]}


def _bodies(document: Json) -> list[Json]:
    """Lists of steps, those within others too."""
    every = [program["body"] for program in document["programs"]]
    for body in every:
        every += [node["body"] for node in body if "body" in node]
    return every


def _place(document: Json, rng: Random) -> tuple[Json, int]:
    return rng.choice([(body, i) for body in _bodies(document) for i, node in enumerate(body) if "op" in node])


def _insert(document: Json, rng: Random, step: Json) -> None:
    """Anywhere; outside a loop of layers it is about a layer of its own."""
    body = rng.choice(_bodies(document))
    looped = any(body is node.get("body") for program in document["programs"] for node in token_loop(program)["body"])
    for field in ("layer", "index"):
        if isinstance(step["op"].get(field), dict) and not looped:
            step["op"][field] = step["op"][field].get("1", 0)
    body.insert(rng.randrange(len(body) + 1), step)


def move(document: Json, rng: Random) -> None:
    body, at = _place(document, rng)
    _insert(document, rng, body.pop(at))


def again(document: Json, rng: Random) -> None:
    body, at = _place(document, rng)
    _insert(document, rng, deepcopy(body[at]) | {"waits": [], "signals": []})


def leave_out(document: Json, rng: Random) -> None:
    body, at = _place(document, rng)
    body.pop(at)


def field(document: Json, rng: Random) -> None:
    """An op has another number, or another array of the same kind."""
    body, at = _place(document, rng)
    op = body[at]["op"]
    name = rng.choice([name for name in op if name != "op"])
    value, kinds = op[name], {b["name"]: (b["space"], b["dtype"]) for b in document["buffers"]}
    if isinstance(value, bool):
        op[name] = not value
    elif isinstance(value, int):
        op[name] = max(0, value + rng.choice((-1, 1, 2, 7)))
    elif isinstance(value, dict):
        term = rng.choice([*value, "1"])
        value[term] = value.get(term, 0) + rng.choice((-1, 1, 2))
    elif value in kinds:
        op[name] = rng.choice([other for other, kind in kinds.items() if kind == kinds[value]])


def of_another(document: Json, rng: Random) -> None:
    """An op as other plans have it, in place of one or beside it, with the arrays that it names."""
    op = deepcopy(rng.choice(ops()[rng.choice(sorted(ops()))]))
    body, at = _place(document, rng)
    if op["role"] not in {role["name"] for role in document["roles"]}:
        op["role"] = body[at]["op"]["role"]
    known = {buffer["name"] for buffer in document["buffers"]}
    for name in (v for k, v in op.items() if isinstance(v, str) and k not in ("op", "role") and v in buffers()):
        if name not in known:
            _with_buffer(document, deepcopy(buffers()[name]))
            known.add(name)
    step = {"op": op, "waits": [], "signals": []}
    if rng.random() < 0.5:
        body[at] = body[at] | {"op": op}
    else:
        _insert(document, rng, step)


def _with_buffer(document: Json, buffer: Json) -> None:
    if buffer["space"] == "shared":
        launch, size = document["launch"], 8
        buffer["offset"] = -(-launch["shared_bytes"] // 128) * 128
        for extent in buffer["shape"]:
            size *= extent
        launch["shared_bytes"] = buffer["offset"] + size
    document["buffers"].append(buffer)


def array(document: Json, rng: Random) -> None:
    """An array is longer, shorter, elsewhere, or something else between launches."""
    buffer = rng.choice(document["buffers"])
    if rng.random() < 0.3 and buffer["offset"] is not None:
        buffer["offset"] = rng.choice([b["offset"] for b in document["buffers"] if b["offset"] is not None])
    elif rng.random() < 0.3:
        buffer["role"] = rng.choice(("scratch", "state", "constant"))
    else:
        at = rng.randrange(len(buffer["shape"]))
        buffer["shape"][at] = max(1, rng.choice((2 * buffer["shape"][at], buffer["shape"][at] - 1)))


EDITS: tuple[Callable[[Json, Random], None], ...] = (
    move, move, again, again, leave_out, field, field, of_another, of_another, of_another, array,
)  # fmt: skip


def drawn(rng: Random) -> tuple[list[str], Json]:
    """(base and names of the edits, document)."""
    name = rng.choice(list(FRAME_BASES))
    document, edits = deepcopy(base(name)), rng.choices(EDITS, k=rng.choice((1, 1, 2, 2, 3, 4)))
    for edit in edits:
        edit(document, rng)
    return [name, *(edit.__name__ for edit in edits)], document


def looked_at(document: Json) -> tuple[str, str]:
    """(ill-formed, refused or accepted by the checker alone; what refutes one that is accepted, or called SAFE)."""
    try:
        schedule = Schedule.model_validate_json(json.dumps(document))
    except ValidationError:
        return "ill-formed", ""
    if check_references(schedule):
        return "ill-formed", ""
    try:
        answers = reasons(schedule)
    except KeyError:  # a step that counts tokens stands outside their loop, so nothing can be said for it
        answers = ["outside"]
    safe = verify(schedule, timeout_s=20).safe
    if answers != [""] and not safe:
        return "refused", ""
    ruling = judge(schedule, 2)
    verdict = "accepted" if answers == [""] else "SAFE, and refused by the checker"
    return verdict, f"{ruling.kind} {ruling.why}{', SAFE' * safe}" if ruling.status == "refuted" else ""


def look(rng: Random, _: Counter[str]) -> random_run.Look:
    names, document = drawn(rng)
    return names[1:], document, *looked_at(document)


if __name__ == "__main__":
    sys.exit(random_run.main(__doc__, look, "accepted"))
