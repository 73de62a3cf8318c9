"""Synchronisation outside the class, to be answered UNKNOWN with its own code; and what a schedule says it does that a
rule of the memory model forbids."""

from __future__ import annotations

from amk.adversary.edits import Edit, Json, Path, after, find, signalling, steps, waiting
from amk.adversary.mistakes import Mistake
from amk.adversary.recipe import Make, Recipe, field_of, put


def added(place: str, counter: str, field: str, value: object) -> Make:
    """A field that is left out while it holds its default, in the step that waits on or signals a counter."""

    def make(schedule: Json) -> list[Edit]:
        step = waiting(schedule, counter) if place == "waits" else signalling(schedule, counter)
        path: Path = (*step, place, 0, field) if place != "step" else (*step, field)
        return [Edit("insert", path, value)]

    return make


def pooled(schedule: Json) -> list[Edit]:
    pool = [{"name": "file", "kind": "registers", "units": 8}]
    step = next(i for i, n in enumerate(schedule["programs"][0]["body"]) if n.get("op", {}).get("op") == "begin")
    taken = Edit("insert", ("programs", 0, "body", step, "takes"), {"file": 4})
    return [Edit("insert", ("pools",), pool), taken]


def unsigned(schedule: Json) -> list[Edit]:
    return [Edit("insert", ("counters", 0, "compare"), "unsigned")]


OUTSIDE = [
    Recipe("wait-for-equal", Mistake.EQUALITY_WAIT, "fenced", "AMK208",
           "the counter may pass the value between two polls", added("waits", "act", "compare", "=="), "UNKNOWN"),
    Recipe("decrement", Mistake.DECREMENT, "fenced", "AMK209", "a wait that held may not hold when it is looked at",
           lambda s: [Edit("replace", (*signalling(s, "act"), "signals", 0, "add"), -1)], "UNKNOWN"),
    Recipe("reset-in-flight", Mistake.COUNTER_RESET, "fenced", "AMK210", "arrivals of others may be wiped out",
           added("signals", "act", "action", "reset"), "UNKNOWN"),
    Recipe("threshold-from-memory", Mistake.DATA_DEPENDENCE, "fenced", "AMK211", "what is waited for depends on data",
           added("waits", "act", "data", "request"), "UNKNOWN"),
    Recipe("step-when", Mistake.DATA_DEPENDENCE, "fenced", "AMK211", "whether the signal is given depends on data",
           added("step", "act", "when", "request"), "UNKNOWN"),
    Recipe("lock", Mistake.LOCK, "fenced", "AMK212", "who takes it first decides what follows",
           added("signals", "act", "action", "exchange"), "UNKNOWN"),
    Recipe("unsigned-compare", Mistake.UNSIGNED_COMPARISON, "fenced", "AMK213",
           "after the wrap every wait passes at once", unsigned, "UNKNOWN"),
    Recipe("shared-pool", Mistake.SHARED_POOL, "fenced", "AMK214", "all warps block on one pool", pooled, "UNKNOWN"),
]  # fmt: skip


def stores(what: str) -> Make:
    return lambda s: [Edit("insert", (*find(s, "store_rows"), "stores"), what)]


def arriving(schedule: Json) -> list[Edit]:
    """The barrier behind which the others go on from the wait."""
    path = next(after(p) for p, s in steps(schedule) if s["waits"] and s["op"]["op"] == "wait")
    return [Edit("insert", (*path, "op", "kind"), "arrive")]


EXTENSIONS = [
    Recipe("bulk-store-not-awaited", Mistake.READ_WAIT, "fenced", "AMK508",
           "the signal may be seen before the results are: `.read` waits for their source only", stores("bulk")),
    Recipe("mixed-reductions", Mistake.MIXED_REDUCTIONS, "fenced", "AMK510",
           "reductions of different sizes on one cell are not atomic to each other", stores("mixed")),
    Recipe("barrier-only-arrived-at", Mistake.ARRIVAL_WITHOUT_WAIT, "fenced", "AMK511",
           "warps go on before the one that polls has seen the counter", arriving),
    Recipe("tensor-map-modified", Mistake.MODIFIED_TENSOR_MAP, "fenced", "AMK512",
           "the copy engine may still use the map as it was",
           lambda s: [Edit("insert", ("streams", 0, "descriptor"), "modified")]),
    Recipe("stream-of-written-memory", Mistake.MISSING_PROXY_FENCE, "fenced", "AMK507",
           "copies run ahead of every wait, so nothing orders them behind who writes their source",
           put(field_of("buffers", "weights", "role"), "state"), "UNKNOWN"),
]  # fmt: skip
