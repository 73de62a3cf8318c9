"""Plans whose warps each have ops of their own, and meet in twos and threes.

All barriers of a plan are of all warps of a worker. Here one warp multiplies, one adds up and publishes rows, one
stages what is multiplied, one serves a head. No barrier is of all four. Waits and signals are of the warp that needs or
has made what is handed over.
"""

from __future__ import annotations

from amk.adversary.edits import Json

WARPS = {"rows": 0, "products": 1, "stages": 2, "heads": 3}
MEETINGS = {
    "rows.products": (0, 2), "products.stages": (1, 2), "stages.heads": (2, 2), "but.heads": (0, 3),
    "but.rows": (1, 3),
}  # fmt: skip
"""Roles of barriers: first warp, number of warps."""
OF: dict[str, str] = {
    "gemv": "products", "refill": "products", "store_rows": "rows", "add_residual": "rows", "swiglu": "rows",
    "argmax_rows": "rows", "finish": "rows", "embed": "stages", "stage_norm": "stages", "stage": "stages",
    "prefetch_cache": "heads", "rope_append": "heads", "attend": "heads", "merge": "heads", "combine": "heads",
    "begin": "all", "select": "all",
}  # fmt: skip
BEFORE: dict[tuple[str, str], tuple[str, ...]] = {
    ("gemv", "qkv"): ("but.heads",), ("store_rows", ""): ("rows.products",), ("combine", ""): ("stages.heads",),
    ("gemv", "o"): ("but.rows", "rows.products"), ("add_residual", "o"): ("rows.products",),
    ("stage_norm", "h_mid"): ("products.stages",), ("gemv", "gate_up"): ("but.heads",),
    ("swiglu", ""): ("but.heads",), ("gemv", "down"): ("but.heads",), ("add_residual", "down"): ("but.heads",),
    ("gemv", "lm_head"): ("but.heads",), ("argmax_rows", ""): ("but.heads",), ("select", ""): ("but.heads",),
}  # fmt: skip
"""Who meets before a step: op, with the matrix or the hidden state that it is about."""


def specialised(document: Json) -> Json:
    """A plan of one warp, in which every worker serves a head by itself, for four warps; `document` stays as it is."""
    roles = {"all": (0, 4), **{name: (first, 1) for name, first in WARPS.items()}, **MEETINGS}
    return document | {
        "launch": document["launch"] | {"warps": 4},
        "roles": [{"name": name, "first": first, "count": count} for name, (first, count) in roles.items()],
        "streams": [stream | {"role": "products"} for stream in document["streams"]],
        "programs": [program | {"body": _dealt(program["body"])} for program in document["programs"]],
    }


def _dealt(body: list[Json]) -> list[Json]:
    """The steps, each by its own warp; who comes next waits as part of its step, who came last signals."""
    found: list[Json] = []
    last, waits = "all", list[Json]()
    for node in body:
        if "body" in node:
            found.append(node | {"body": _dealt(node["body"])})
            continue
        op = node["op"]
        if op["op"] == "wait":
            waits += node["waits"]
        elif op["op"] == "signal":
            found.append(node | {"op": op | {"role": last}})
        elif op["op"] != "barrier":
            last = OF[op["op"]]
            about = op.get("matrix") or (op.get("h") if op["op"] == "stage_norm" else "") or ""
            found += [_meeting(role) for role in BEFORE.get((op["op"], about), ())]
            found.append(node | {"op": op | {"role": last}, "waits": [*waits, *node["waits"]]})
            waits = []
    return found


def _meeting(role: str) -> Json:
    _, count = MEETINGS[role]
    barrier = {"op": "barrier", "role": role, "id": 1 + [*MEETINGS].index(role), "agents": count}
    return {"op": barrier, "waits": [], "signals": []}
