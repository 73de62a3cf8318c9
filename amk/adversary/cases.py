"""Well-formed unsafe schedules, each made from a safe plan by a few edits, with what must be found and why.

A case file holds the bad schedule, what `verify` must say, the reason in words, and the edits that repair it; the
repaired schedule must be SAFE. `make_cases` builds all of them from planner output for a tiny model; labels are checked
by the tests, where every witness is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any

from amk.adversary.edits import Edit, Json, Path, after, apply, at, find, named, signalling, waiting
from amk.planner.decode import plan
from amk.planner.settings import FAST, NAIVE, Settings
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.target import load_target

FORMAT = "amk.case/1"
WORKERS = 4
TINY = ModelSpec(
    name="tiny", source="made up for the adversarial suite", layers=2, hidden=64, ffn=96, heads=4, kv_heads=2,
    head_dim=32, vocab=96, max_context=32, rms_eps=1e-5, rope_theta=10_000.0,
)  # fmt: skip
BASES: dict[str, Settings] = {
    "fenced": replace(NAIVE, warps=4, kv_block=8, wide_epilogue=64),
    "wide": replace(NAIVE, warps=4, kv_block=8),
    "heads": replace(NAIVE, warps=4, kv_block=8, wide_epilogue=64, head_handoff=True),
    "tagged": replace(FAST, warps=4, kv_block=8),
}
"""Plans that cases start from: epilogues in one warp, in all warps, with per-head counters, with tagged words."""

Make = Callable[[Json], list[Edit]]


@dataclass(frozen=True)
class Recipe:
    """expect: "SAFE" or the code of the first finding; status: UNSAFE, UNKNOWN or SAFE. kind: class in the suite."""

    name: str
    kind: str
    base: str
    expect: str
    because: str
    make: Make
    status: str = "UNSAFE"


def base_schedule(name: str) -> Json:
    """The safe plan as JSON."""
    schedule = plan(TINY, load_target("h200"), settings=BASES[name], workers=WORKERS)
    return json.loads(schedule.model_dump_json())


def drop(find_path: Callable[[Json], Path]) -> Make:
    return lambda s: [Edit("remove", find_path(s))]


def put(find_path: Callable[[Json], Path], value: Any) -> Make:
    return lambda s: [Edit("replace", find_path(s), value)]


def swap(find_path: Callable[[Json], Path], by: int) -> Make:
    """Move the step `by` places."""

    def make(s: Json) -> list[Edit]:
        path = find_path(s)
        return [Edit("remove", path), Edit("insert", after(path, by), at(s, path))]

    return make


def wait_of(counter: str, field: str) -> Callable[[Json], Path]:
    return lambda s: (*waiting(s, counter), "waits", 0, field)


def signal_of(counter: str, field: str) -> Callable[[Json], Path]:
    return lambda s: (*signalling(s, counter), "signals", 0, field)


def alias(buffer: str, onto: str) -> Make:
    def make(s: Json) -> list[Edit]:
        return [Edit("replace", (*named(s, "buffers", buffer), "offset"), at(s, named(s, "buffers", onto))["offset"])]

    return make


def two_programs(s: Json, edits: Make) -> list[Edit]:
    """Workers 0..1 and 2..3 run copies of the program; `edits` are made to the first."""
    first = s["programs"][0] | {"count": 2}
    second = s["programs"][0] | {"name": "other", "first": 2, "count": WORKERS - 2}
    split = [Edit("replace", ("programs", 0), first), Edit("insert", ("programs", 1), second)]
    return split + edits(apply(s, split)[0])


def _field(kind: str, name: str, field: str) -> Callable[[Json], Path]:
    return lambda s: (*named(s, kind, name), field)


def _op(op: str, field: str, **fields: Json) -> Callable[[Json], Path]:
    return lambda s: (*find(s, op, **fields), "op", field)


W = WORKERS
ORDER = [
    Recipe("rope-without-barrier", "dropped barrier", "fenced", "AMK302", "attend reads q while other warps still write it", drop(lambda s: after(find(s, "rope_append")))),
    Recipe("attend-without-barrier", "dropped barrier", "fenced", "AMK302", "merge reads partials of warps that are still attending", drop(lambda s: after(find(s, "attend")))),
    Recipe("gemv-too-early", "dropped barrier", "fenced", "AMK302", "a warp multiplies by x before the others have staged it", drop(lambda s: after(find(s, "gemv", matrix="gate_up"), -1))),
    Recipe("sum-too-early", "dropped barrier", "fenced", "AMK302", "partial sums are added before all warps have written theirs", drop(lambda s: after(find(s, "gemv", matrix="down")))),
    Recipe("poll-without-barrier", "M4: barrier after the poll", "fenced", "AMK302", "one warp polls, the others read without having waited", drop(lambda s: after(waiting(s, "attn")))),
    Recipe("release-before-barrier", "36 release before the barrier", "wide", "AMK302", "warp 0 signals while other warps still write the rows", drop(lambda s: after(signalling(s, "act"), -1))),
    Recipe("missing-wait", "13 dropped wait", "fenced", "AMK302", "the hidden state is read while other workers write it", drop(lambda s: waiting(s, "h_mid"))),
    Recipe("missing-wait-best", "13 dropped wait", "fenced", "AMK302", "the token is chosen before all candidates are there", drop(lambda s: waiting(s, "best"))),
    Recipe("wait-after-read", "14 wait at the wrong place", "fenced", "AMK302", "the activation is staged, then waited for", swap(lambda s: find(s, "stage"), -2)),
    Recipe("signal-before-write", "swapped steps", "wide", "AMK302", "the signal goes out before the rows are written", swap(lambda s: signalling(s, "qkv"), -2)),
    Recipe("threshold-low", "3 threshold one too low", "fenced", "AMK302", "the slowest worker's partials may be missing", put(wait_of("attn", "at_least"), {"t": W, "1": W - 1})),
    Recipe("threshold-slope-low", "3 threshold one too low", "fenced", "AMK302", "from the second token on one increment is not waited for", put(wait_of("act", "at_least"), {"t": W - 1, "1": W})),
    Recipe("threshold-high", "4 threshold one too high", "fenced", "AMK201", "the increment that is missing is the next token's, which waits for this one", put(wait_of("attn", "at_least"), {"t": W, "1": W + 1})),
    Recipe("threshold-slope-high", "4 threshold one too high", "fenced", "AMK202", "the first token passes, the second starves", put(wait_of("h_mid", "at_least"), {"t": W + 1, "1": W})),
    Recipe("missing-signal", "too few producers", "fenced", "AMK202", "nobody says that the activation is complete", drop(lambda s: (*signalling(s, "act"), "signals", 0))),
    Recipe("signal-elsewhere", "10 producer moved to another counter", "fenced", "AMK202", "the counter that is waited for stays at zero", put(signal_of("attn", "counter"), "act")),
    Recipe("weight-two", "9 weighted signal hides a producer", "fenced", "AMK302", "half of the workers already make the total", put(signal_of("h_mid", "add"), 2)),
    Recipe("table-weight", "10 total satisfied by another producer", "fenced", "AMK302", "one worker signals for another that signals nothing", lambda s: [Edit("replace", ("tables",), s["tables"] | {"extra": [2, 0] + [1] * (W - 2)}), Edit("replace", signal_of("act", "add")(s), {"extra": 1})]),
    Recipe("initial-value", "non-zero initial counter", "fenced", "AMK302", "the counter starts one too high, so one producer is not waited for", put(_field("counters", "attn", "init"), 1)),
    Recipe("constant-index", "20 wrong layer in a wait", "fenced", "AMK302", "every layer waits for the first layer's hand-off", put(wait_of("h_out", "index"), [0])),
    Recipe("shared-index", "11 two events share a counter", "fenced", "AMK302", "all layers count on one cell, later layers pass at once", lambda s: [Edit("replace", wait_of("act", "index")(s), [0]), Edit("replace", signal_of("act", "index")(s), [0])]),
    Recipe("wrong-counter", "queue cycle", "fenced", "AMK201", "everybody waits for the activation before making it", put(wait_of("h_mid", "counter"), "act")),
    Recipe("queue-inversion", "1 cross-SM queue inversion", "fenced", "AMK201", "two workers wait for the others' signals before giving their own", lambda s: two_programs(s, swap(lambda t: waiting(t, "act"), -3))),
    Recipe("wait-before-own-signal", "queue cycle", "fenced", "AMK201", "the last signal that is missing is the waiter's own", swap(lambda s: waiting(s, "h_out"), -3)),
    Recipe("wrong-head", "wait on another head", "heads", "AMK302", "workers wait for the rows of another head than they read", put(lambda s: ("tables", "attn.gate"), [1, 1, 0, 0])),
    Recipe("head-producer", "10 total satisfied by another producer", "heads", "AMK302", "one producer of the head counts for another", lambda s: _shift_producer(s)),
    Recipe("other-buffer", "20 stale read without a race", "fenced", "AMK105", "the norm before the MLP reads the buffer of the layer's end", put(_op("stage_norm", "h", h="h_mid"), "h_out")),
    Recipe("merge-before-attend", "swapped steps", "fenced", "AMK105", "partials are merged before they exist", lambda s: _exchange(s, find(s, "attend"), find(s, "merge"))),
    Recipe("alias-q-att", "22 aliased shared memory", "fenced", "AMK302", "partials overwrite the queries that other warps still read", alias("q", "att")),
    Recipe("alias-part-x", "22 aliased shared memory", "fenced", "AMK302", "partial sums overwrite the staged vector", alias("part", "x")),
    Recipe("alias-ssq-residual", "22 aliased shared memory", "fenced", "AMK301", "the sums of squares overwrite the residual", alias("ssq", "residual")),
    Recipe("relaxed-wait", "37 relaxed poll", "fenced", "AMK503", "the poll orders nothing that follows", put(wait_of("attn", "order"), "relaxed")),
    Recipe("relaxed-signal", "M2 signal without release", "fenced", "AMK502", "the signal may overtake the rows it announces", put(signal_of("qkv", "order"), "relaxed")),
    Recipe("hint-for-fence", "a hint has no edge", "fenced", "AMK302", "the counter is declared a hint, so it orders nothing", put(_field("counters", "h_mid", "handoff"), "hint")),
    Recipe("untagged-word", "M13", "tagged", "AMK302", "plain words behind a hint: nothing orders them", lambda s: [Edit("replace", _field("buffers", "act", "tagged")(s), False), Edit("replace", _field("buffers", "act", "tag")(s), None)]),
    Recipe("repeated-tag", "M13", "tagged", "AMK513", "both layers use the same tag", put(_field("buffers", "h_mid", "tag"), {"t": 1, "1": 1})),
    Recipe("tag-reaches-next-token", "M13", "tagged", "AMK513", "the second layer's tag is the next token's first", put(_field("buffers", "act", "tag"), {"t": 1, "l": 1, "1": 1})),
    Recipe("zero-tag", "M13", "tagged", "AMK513", "zeroed memory already carries the first tag", put(_field("buffers", "qkv", "tag"), {"t": 2, "l": 1})),
    Recipe("words-before-writing", "queue cycle", "tagged", "AMK201", "every worker looks for words that it writes later itself", lambda s: _exchange(s, find(s, "stage"), find(s, "swiglu"))),
    Recipe("hint-high", "4 threshold one too high", "tagged", "AMK201", "the hint that is missing is the next token's", put(wait_of("act", "at_least"), {"t": W, "1": W + 1})),
]  # fmt: skip
FACTS = [
    Recipe("rows-twice", "19 overlap after a share change", "fenced", "AMK102", "two workers own a row group", lambda s: [Edit("replace", ("tables", "hidden.count", 0), s["tables"]["hidden.count"][0] + 1)]),
    Recipe("rows-missing", "output not covered", "fenced", "AMK101", "a row group has no owner", lambda s: [Edit("replace", ("tables", "qkv.count", 1), s["tables"]["qkv.count"][1] - 1)]),
    Recipe("head-split-twice", "duplicated rows", "fenced", "AMK102", "two workers append the same cache rows", put(lambda s: ("tables", "attn.split", 1), 0)),
    Recipe("op-missing", "model graph", "fenced", "AMK106", "the layer never applies its MLP activation", drop(lambda s: find(s, "swiglu"))),
    Recipe("op-twice", "8 task twice", "fenced", "AMK106", "the projection is added twice", lambda s: [Edit("insert", after(find(s, "add_residual", matrix="o")), {"op": at(s, find(s, "add_residual", matrix="o"))["op"]})]),
    Recipe("wrong-layer", "model graph", "fenced", "AMK106", "every layer uses the first layer's weights", put(_op("gemv", "layer", matrix="o"), 0)),
    Recipe("sum-of-fewer", "split mismatch", "fenced", "AMK106", "the sum of squares leaves a warp out", put(_op("swiglu", "ssq_agents"), 3)),
    Recipe("barrier-of-fewer", "29 wrong arrival count", "fenced", "AMK404", "a warp leaves before all have arrived", put(_op("barrier", "agents"), 3)),
    Recipe("barrier-of-more", "29 wrong arrival count", "fenced", "AMK404", "the warps that arrive are never enough", put(_op("barrier", "agents"), 5)),
    Recipe("constant-written", "40 non-coherent load", "fenced", "AMK509", "rows are handed over in a buffer that is read as a constant", lambda s: [Edit("replace", _op("store_rows", "out")(s), "norm"), Edit("replace", _op("rope_append", "qkv")(s), "norm")]),
    Recipe("small-buffer", "access out of bounds", "fenced", "AMK103", "the last activations lie behind the buffer", put(_field("buffers", "act", "shape"), [88])),
    Recipe("counter-shape", "access out of bounds", "fenced", "AMK103", "the second layer's counter does not exist", put(_field("counters", "attn", "shape"), [1])),
    Recipe("cta-scope", "38 cta scope", "fenced", "AMK505", "the counter crosses SMs with block scope", put(_field("counters", "h_out", "scope"), "cta")),
    Recipe("ring-over-x", "slot reused by something else", "fenced", "AMK301", "weight copies land on the staged vector", alias("ring", "x")),
    Recipe("ring-too-small", "27 ring depth changed", "fenced", "AMK103", "the ring has more slots than memory", put(_field("streams", "weights", "slots"), 5)),
    Recipe("shared-overflow", "resources", "fenced", "AMK401", "a worker asks for more shared memory than a block has", put(lambda s: ("launch", "shared_bytes"), 240_000)),
    Recipe("shared-end", "resources", "fenced", "AMK401", "a buffer ends behind the launch's shared memory", put(lambda s: ("launch", "shared_bytes"), 1024)),
    Recipe("not-resident", "44 co-residency", "fenced", "AMK402", "more workers per SM than registers allow", put(lambda s: ("launch", "ctas_per_sm"), 8)),
    Recipe("not-cooperative", "44 co-residency", "fenced", "AMK402", "nothing promises that all workers run", put(lambda s: ("launch", "cooperative"), False)),
    Recipe("misaligned", "resources", "fenced", "AMK406", "a bulk copy needs its alignment", lambda s: [Edit("replace", _field("buffers", "ring", "offset")(s), at(s, named(s, "buffers", "ring"))["offset"] + 8)]),
    Recipe("ring-without-fence", "39 missing proxy fence", "fenced", "AMK507", "slots are refilled without a proxy fence: a policy, not a proof", put(_field("streams", "weights", "refill_fence"), False), "UNKNOWN"),
    Recipe("epoch-drift", "41 no epoch separation", "fenced", "AMK203", "a threshold grows slower than its counter", lambda s: _drift(s), "UNKNOWN"),
]  # fmt: skip
LEGAL = [
    Recipe("redundant-wait", "12 dropped redundant wait", "tagged", "SAFE", "a hint orders nothing, so nothing is lost without it", drop(lambda s: waiting(s, "h_mid")), "SAFE"),
    Recipe("two-equal-programs", "renaming", "fenced", "SAFE", "workers may run copies of one program", lambda s: two_programs(s, lambda _: []), "SAFE"),
    Recipe("lower-thresholds-of-one-owner", "6 legal partial threshold", "fenced", "SAFE", "a wait that a later full wait makes redundant", lambda s: [Edit("insert", waiting(s, "attn"), at(s, waiting(s, "attn")) | {"waits": [at(s, waiting(s, "attn"))["waits"][0] | {"at_least": {"t": W, "1": 1}}]})], "SAFE"),
]  # fmt: skip
RECIPES = [*ORDER, *FACTS, *LEGAL]


def _exchange(s: Json, one: Path, two: Path) -> list[Edit]:
    return [Edit("replace", one, at(s, two)), Edit("replace", two, at(s, one))]


def _shift_producer(s: Json) -> list[Edit]:
    """The first producer of head 0 stops counting, the last counts for it."""
    column = list(s["tables"]["qkv.to.0"])
    owners = [w for w, n in enumerate(column) if n]
    column[owners[-1]] += column[owners[0]]
    column[owners[0]] = 0
    return [Edit("replace", ("tables", "qkv.to.0"), column)]


def _drift(s: Json) -> list[Edit]:
    """A second wait on a counter, whose threshold grows by one less than the counter does."""
    path = waiting(s, "attn")
    wait = at(s, path)["waits"][0]
    return [Edit("insert", (*path, "waits", 1), wait | {"at_least": {"t": W - 1, "1": W}})]


def make_case(recipe: Recipe) -> Json:
    """The case as it stands in its file."""
    document, repair = apply(base_schedule(recipe.base), recipe.make(base_schedule(recipe.base)))
    return {
        "format": FORMAT,
        "name": recipe.name,
        "class": recipe.kind,
        "status": recipe.status,
        "expect": recipe.expect,
        "because": recipe.because,
        "repair": [{"do": e.do, "path": list(e.path), "value": e.value} for e in repair],
        "schedule": document,
    }


def repaired(case: Json) -> Json:
    """The safe twin of a case."""
    edits = [Edit(e["do"], tuple(e["path"]), e["value"]) for e in case["repair"]]
    return apply(case["schedule"], edits)[0]


def write_cases(folder: File) -> int:
    """One file per recipe; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in RECIPES:
        case = make_case(recipe)
        head = {k: v for k, v in case.items() if k != "schedule"}
        text = (
            json.dumps(head, indent=1)[:-2] + ',\n "schedule": ' + json.dumps(case["schedule"], separators=(",", ":"))
        )
        (folder / f"{recipe.name}.json").write_text(text + "\n}\n", encoding="ascii")
    return len(RECIPES)
