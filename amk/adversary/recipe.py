"""What a case is made of: a safe plan of a tiny model, edits, and what must be found in the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from amk.adversary.edits import Edit, Json, Path, after, apply, at, find, meeting, named, signalling, steps, waiting
from amk.adversary.mistakes import Mistake
from amk.adversary.specialised import specialised
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import BF16, formats
from amk.planner.settings import FAST, PHASED, Settings
from amk.targets.target import load_target

WORKERS = 4
TINY = ModelSpec(
    name="tiny",
    source="made up for the adversarial suite",
    layers=2,
    hidden=64,
    ffn=96,
    heads=4,
    kv_heads=2,
    head_dim=32,
    vocab=96,
    max_context=32,
    rms_eps=1e-5,
    rope_theta=10_000.0,
)
BASES: dict[str, Settings] = {
    "fenced": replace(PHASED, warps=4, kv_block=8, wide_epilogue=64),
    "wide": replace(PHASED, warps=4, kv_block=8),
    "heads": replace(PHASED, warps=4, kv_block=8, wide_epilogue=64, head_handoff=True),
    "tagged": replace(FAST, warps=4, kv_block=8),
    "held": replace(PHASED, warps=2, kv_block=8, run_ahead=True, slots=4, held_refills=1.0),
    "rows": replace(FAST, warps=2, kv_block=8, rows=3),
    "guesses": replace(PHASED, warps=2, kv_block=8, rows=3, accepts=True),
    "tree": replace(PHASED, warps=2, kv_block=8, rows=4, tree=True),
    "live": replace(FAST, warps=2, kv_block=8, batch=2, live=True),
    "turns": replace(FAST, warps=2, kv_block=8, batch=3),
    "turns of two": replace(PHASED, warps=4, kv_block=8, batch=3),
    "coded": replace(FAST, warps=2, kv_block=8, batch=2, live=True, k_parts=2),
    "digits": replace(FAST, warps=2, kv_block=8),
    "block": replace(FAST, warps=2, kv_block=8),
    "parts": replace(FAST, warps=2, kv_block=8, rows=3, handoff="mixed", chunk_bytes=512, x_parts=2, k_parts=3),
    "divided": replace(FAST, warps=2, kv_block=8, rows=3, handoff="mixed", chunk_bytes=512, k_splits=2),
    "alone": replace(PHASED, warps=1, kv_block=8),
    "deep": replace(PHASED, warps=4, kv_block=8, wide_epilogue=64),
    "single": replace(PHASED, warps=2, kv_block=8),
    "drawing": replace(PHASED, warps=2, kv_block=8, sampling="top-k-top-p"),
    "apart": replace(FAST, warps=1, kv_block=8, kv_splits=1, handoff="tagged", overlay=False),
    "drawn batch": replace(PHASED, warps=2, kv_block=8, batch=2, sampling="top-k", head_sums="global"),
    "layouts": replace(FAST, warps=2, kv_block=8),
    "reduced": replace(FAST, warps=2, kv_block=8, reduce_from=2),
    "nine rows": replace(FAST, warps=2, kv_block=16, rows=9, head_sums="global"),
    "long": replace(PHASED, warps=2, kv_block=8),
    "long in blocks": replace(PHASED, warps=4, kv_block=8),
}
"""Plans that cases start from. A name says what its plan adds to a plain one:

fenced, wide: epilogues in one warp, in all warps. heads: per-head counters. tagged: flag words. held: copies held back
until a result is out. rows, guesses, tree: steps of three rows, of three that accept guesses, of four that are a tree.
nine rows: steps of nine. live: two sequences at positions of their own. turns, turns of two: three sequences whose six
KV heads are served in two turns, by a warp each or by two. coded: as live, with weights in codes and `down` in two
parts. digits: weights in codes. block: those and attention's outputs in one block. reduced: these are reduced before
they are staged. parts: three rows and parts of all columns. divided: three rows, and columns of o and `down` divided
among two workers. alone: one warp each. deep: four layers, of which an analysis may look at fewer. single: one worker.
drawing, drawn batch: tokens that are drawn, also by two sequences. apart: ops of its own for each of four warps.
layouts: vectors that lie in two layouts at once and end within a block. long: hidden states that one warp cannot norm
at once. long in blocks: such of LayerNorms, and weights in codes."""
MODELS = {
    "divided": TINY.model_copy(update={"ffn": 128}),
    "coded": TINY.model_copy(update={"ffn": 640}), "block": TINY.model_copy(update={"heads": 2, "kv_heads": 1}),
    "deep": TINY.model_copy(update={"layers": 4}), "single": TINY.model_copy(update={"kv_heads": 1}),
    "apart": TINY.model_copy(update={"kv_heads": 4}), "layouts": TINY.model_copy(update={"hidden": 96}),
    "reduced": TINY.model_copy(update={"heads": 2, "kv_heads": 1}),
    "long": TINY.model_copy(update={"layers": 1, "hidden": 1280}),
    "long in blocks": TINY.model_copy(update={
        "family": "gpt_neox", "layers": 1, "hidden": 2304, "kv_heads": 4, "qkv_bias": True, "activation": "gelu",
    }),
}  # fmt: skip
"""Of the bases that have one of their own."""

Make = Callable[[Json], list[Edit]]


@dataclass(frozen=True)
class Recipe:
    """expect: "SAFE" or the code of the first finding; status: UNSAFE, UNKNOWN or SAFE."""

    name: str
    mistake: Mistake
    base: str
    expect: str
    because: str
    make: Make
    status: str = "UNSAFE"


def base_schedule(name: str) -> Json:
    """The safe plan as JSON; `idle` is the tagged one with a worker that owns no rows of the layers."""
    settings = BASES["tagged" if name == "idle" else name]
    coded = {"layouts": formats("int8", "bf16")} | dict.fromkeys(
        ("coded", "digits", "block", "reduced", "long in blocks"), formats("int8")
    )
    wanted = coded.get(name, BF16)
    workers = 1 if name == "single" else WORKERS
    found = plan(MODELS.get(name, TINY), load_target("h200"), settings=settings, formats=wanted, workers=workers)
    document = json.loads(found.model_dump_json())
    if name == "apart":
        return specialised(document)
    return apply(document, idle_worker(document))[0] if name == "idle" else document


def drop(find_path: Callable[[Json], Path]) -> Make:
    return lambda s: [Edit("remove", find_path(s))]


def put(find_path: Callable[[Json], Path], value: Any, new: bool = False) -> Make:
    """new: the field is left out while it holds its default."""
    return lambda s: [Edit("insert" if new else "replace", find_path(s), value)]


def put_each(*values: tuple[Path, Any]) -> Make:
    return lambda s: [Edit("replace", path, value) for path, value in values]


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


def in_another_form(find_step: Callable[[Json], Path], dtype: str) -> Make:
    """What a step stages goes into an array of this dtype, which lies where readers look for digits."""

    def make(s: Json) -> list[Edit]:
        place = named(s, "buffers", "x_digits")
        other = at(s, place) | {"name": f"x_{dtype}", "dtype": dtype}
        staged = Edit("replace", (*find_step(s), "op", "x"), other["name"])
        return [staged, Edit("insert", (*place[:-1], len(s["buffers"])), other)]

    return make


def two_programs(s: Json, edits: Make) -> list[Edit]:
    """Workers 0..1 and 2..3 run copies of the program; `edits` are made to the first."""
    first = s["programs"][0] | {"count": 2}
    second = s["programs"][0] | {"name": "other", "first": 2, "count": WORKERS - 2}
    split = [Edit("replace", ("programs", 0), first), Edit("insert", ("programs", 1), second)]
    return split + edits(apply(s, split)[0])


def field_of(kind: str, name: str, field: str) -> Callable[[Json], Path]:
    return lambda s: (*named(s, kind, name), field)


def op_field(op: str, field: str, **fields: Json) -> Callable[[Json], Path]:
    return lambda s: (*find(s, op, **fields), "op", field)


def refills(s: Json) -> list[Path]:
    """The steps that issue copies which products held back."""
    return [path for path, step in steps(s) if step["op"]["op"] == "refill"]


def exchange(s: Json, one: Path, two: Path) -> list[Edit]:
    return [Edit("replace", one, at(s, two)), Edit("replace", two, at(s, one))]


def shift_producer(s: Json) -> list[Edit]:
    """The first producer of head 0 stops counting, the last counts for it."""
    column = list(s["tables"]["qkv.to.0"])
    owners = [w for w, n in enumerate(column) if n]
    column[owners[-1]] += column[owners[0]]
    column[owners[0]] = 0
    return [Edit("replace", ("tables", "qkv.to.0"), column)]


def drift(s: Json) -> list[Edit]:
    """A second wait on a counter, whose threshold grows by one less than the counter does."""
    path = waiting(s, "attn")
    wait = at(s, path)["waits"][0]
    return [Edit("insert", (*path, "waits", 1), wait | {"at_least": {"t": WORKERS - 1, "1": WORKERS}})]


def short_relaxed_waits(s: Json) -> list[Edit]:
    """Every wait for a hint lets one worker be late."""
    return [
        Edit("replace", (*path, "waits", 0, "at_least"), wait["at_least"] | {"1": wait["at_least"]["1"] - 1})
        for path, wait in _relaxed_waits(s)
    ]


def without_relaxed_waits(s: Json, counters: tuple[str, ...]) -> list[Edit]:
    """Nobody waits for these hints."""
    waits = [path for path, wait in _relaxed_waits(s) if wait["counter"] in counters]
    return [Edit("remove", path) for path in reversed(waits)]


def _relaxed_waits(s: Json) -> list[tuple[Path, Json]]:
    """Steps that wait for a hint, with the wait."""
    relaxed = {c["name"] for c in s["counters"] if c["handoff"] == "hint"}
    waits = [(path, step["waits"][0]) for path, step in steps(s) if step.get("waits")]
    return [(path, wait) for path, wait in waits if wait["counter"] in relaxed]


def select_early(s: Json) -> list[Edit]:
    """Argmax and select of a token come before the steps that finish it, so `embed` follows them."""
    path, embed = find(s, "select"), find(s, "embed")
    return [Edit("insert", after(path), at(s, embed)), Edit("remove", embed)]


def idle_worker(s: Json) -> list[Edit]:
    """Worker 3 owns no rows of the layers; worker 2 gets them, and the shared memory for them. The hand-off of the
    candidates is fenced: nobody looks for them where the token is given.
    """
    end = s["launch"]["shared_bytes"]
    room = {"residual": (end, [32]), "part": (end + 128, [20, 8])}
    edits = [Edit("replace", ("launch", "shared_bytes"), end + 1024)]
    for name, (offset, shape) in room.items():
        edits.append(Edit("replace", (*named(s, "buffers", name), "offset"), -(-offset // 128) * 128))
        edits.append(Edit("replace", (*named(s, "buffers", name), "shape"), shape))
    for part, groups in (("hidden", 8), ("gate_up", 24), ("qkv", 32)):
        quarter, half = groups // 4, groups // 2
        edits.append(Edit("replace", ("tables", f"{part}.first"), [0, quarter, half, groups]))
        edits.append(Edit("replace", ("tables", f"{part}.count"), [quarter, quarter, half, 0]))
    barrier = at(s, next(path for path, step in steps(s) if step["op"]["op"] == "barrier"))
    met = Edit("insert", signalling(s, "best"), barrier)
    return [*edits, *strengthened(s, "best", ("fenced", "acquire", "release")), met]


def held_by_reader(s: Json) -> list[Edit]:
    """Every warp of workers 2 and 3 signals in the step that reads the words of the attention's output; those who write
    some of these words wait for all of these signals first. Nothing else makes the readers wait for the writers.
    """
    split = two_programs(s, lambda _: [])
    doc = apply(s, split)[0]
    reader, writer, hint = (
        find(doc, "stage_norm", h="h_mid"),
        find(doc, "add_residual", h="h_mid"),
        waiting(doc, "h_mid"),
    )
    warps = next(role["count"] for role in doc["roles"] if role["name"] == at(doc, reader)["op"]["role"])
    early = {"name": "early", "shape": [doc["model"]["layers"], WORKERS * warps], "handoff": "fenced"}
    cells = range(2 * warps, WORKERS * warps)
    waits = [
        {"counter": "early", "index": [{"l": 1}, cell], "at_least": {"t": 1, "1": 1}, "order": "acquire"}
        for cell in cells
    ]
    own = {"counter": "early", "index": [{"l": 1}, {"worker": warps, "agent": 1}], "add": 1, "order": "release"}
    return [
        *split,
        Edit("insert", ("counters", len(doc["counters"])), at(doc, named(doc, "counters", "h_mid")) | early),
        Edit("replace", (*writer[:-1], int(writer[-1]) - 1, "waits"), waits),
        Edit("replace", ("programs", 1, *reader[2:], "signals"), [own]),
        Edit("remove", ("programs", 1, *hint[2:], "waits", 0)),
    ]


def strengthened(s: Json, counter: str, words: tuple[str, str, str]) -> list[Edit]:
    """The counter's hand-off, and the order of its waits and signals."""
    edits = [Edit("replace", (*named(s, "counters", counter), "handoff"), words[0])]
    for path, step in steps(s):
        for place, word in (("waits", words[1]), ("signals", words[2])):
            users = [i for i, use in enumerate(step.get(place, ())) if use["counter"] == counter]
            edits += [Edit("replace", (*path, place, i, "order"), word) for i in users]
    return edits


def met_once(s: Json) -> list[Edit]:
    """Nothing but hints orders worker 3's `begin` before `finish`, except in the first launch: `finish` waits for a
    count of worker 3 that is the same in every launch.
    """
    weak = strengthened(s, "best", ("hint", "relaxed", "relaxed"))
    late = at(s, named(s, "counters", "best")) | {"name": "late", "shape": [WORKERS], "handoff": "fenced"}
    use = {"counter": "late", "index": [{"worker": 1}]}
    return [
        *weak,
        Edit("insert", ("counters", len(s["counters"])), late),
        Edit("insert", (*signalling(s, "best"), "signals", 1), use | {"add": 1, "order": "release"}),
        Edit("replace", (*find(s, "finish"), "waits"), [use | {"index": [3], "at_least": 1, "order": "acquire"}]),
    ]


def signal_elsewhere(counter: str, index: Json) -> Make:
    """Who signals the counter also signals the instance with this index; there are twice as many as are waited for."""

    def make(s: Json) -> list[Edit]:
        shape = (*named(s, "counters", counter), "shape")
        entry = {"counter": counter, "index": [index], "add": 1, "order": "release"}
        more = [2 * size for size in at(s, shape)]
        return [Edit("replace", shape, more), Edit("insert", (*signalling(s, counter), "signals", 1), entry)]

    return make


def counter_for_barrier(s: Json) -> list[Edit]:
    """The warps of a worker meet before lm_head by a counter of their own, of which worker 2 waits for no more than
    they had signalled a token earlier."""
    place, warps = after(find(s, "gemv", matrix="lm_head"), -1), s["launch"]["warps"]
    signal, wait = meeting("own", [{"worker": 1}], {"t": warps, "1": warps, "late": -warps})
    own = {"name": "own", "shape": [WORKERS], "scope": "gpu", "handoff": "fenced", "init": 0}
    return [
        Edit("insert", ("tables", "late"), [int(worker == 2) for worker in range(WORKERS)]),
        Edit("insert", ("counters", len(s["counters"])), own),
        Edit("replace", place, signal),
        Edit("insert", after(place), wait),
    ]
