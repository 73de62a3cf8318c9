"""Mistakes in what a schedule takes for granted: which constant is read, whose bytes they are, how wide a word is. Also
that a wait is the same wait in every token, and that the model's own op makes each value."""

from __future__ import annotations

from amk.adversary.edits import Edit, Json, after, at, find, named, steps, waiting
from amk.adversary.mistakes import Mistake
from amk.adversary.recipe import (
    WORKERS as W,
)
from amk.adversary.recipe import Make, Recipe, drop, field_of, op_field, put, two_programs, wait_of
from amk.schedule_ir.sampling import LAST

WORD = 2**32


def _thresholds_cross(s: Json) -> list[Edit]:
    """Two more waits for the candidates, whose thresholds are those of the first two tokens in another order."""
    path = (*waiting(s, "best"), "waits")
    wait = at(s, path)[0]
    return [Edit("replace", path, [wait, wait | {"at_least": {"t": 2 * W}}, wait | {"at_least": W}])]


def _everywhere(field: str, name: str) -> Make:
    """Every op that has this field gets this buffer for it."""
    return lambda s: [
        Edit("replace", (*path, "op", field), name) for path, step in steps(s) if step["op"].get(field) is not None
    ]


def _empty_waits(s: Json) -> list[Edit]:
    """Every barrier of the block becomes a wait for nothing."""
    empty = {"op": "wait", "role": "all"}
    return [Edit("replace", (*path, "op"), empty) for path, step in steps(s) if step["op"]["op"] == "barrier"]


def _mbarriers_as_sums(s: Json) -> list[Edit]:
    return [Edit("replace", field_of("buffers", "full", "dtype")(s), "f32"), *_everywhere("ssq", "full")(s)]


def _chunks_across_parts(s: Json) -> list[Edit]:
    """Narrower chunks of down, more of them, and room for all."""
    weights = field_of("buffers", "weights", "shape")(s)
    return [
        Edit("replace", ("streams", 0, "chunks", "down", "columns"), 192),
        Edit("replace", weights, [2 * n for n in at(s, weights)]),
    ]


def _as_in_a_slice(s: Json) -> list[Edit]:
    """The second program."""
    place = ("programs", 1, *find(s, "select")[2:])
    role = at(s, place)["op"]["role"]
    op = {"op": "give_hidden", "role": role, "residual": "residual", "hidden_out": "hidden_out"}
    return [_hidden(s, "hidden_out", "state"), Edit("replace", (*place, "op"), op)]


def _given_hidden(s: Json) -> list[Edit]:
    place = (*find(s, "embed"), "op")
    kept = {key: value for key, value in at(s, place).items() if key != "table"}
    op = kept | {"op": "take_hidden", "hidden_in": "hidden_in"}
    return [_hidden(s, "hidden_in", "constant"), Edit("replace", place, op)]


def _hidden(s: Json, name: str, role: str) -> Edit:
    """Such a state, as the host knows it of slices."""
    logits = at(s, named(s, "buffers", "logits"))
    hidden = logits | {"name": name, "role": role, "shape": [s["model"]["hidden"]]}
    return Edit("insert", ("buffers", len(s["buffers"])), hidden)


def _activated_otherwise(s: Json) -> list[Edit]:
    place, shape = (*find(s, "swiglu"), "op"), (*named(s, "buffers", "act"), "shape")
    kept = {key: value for key, value in at(s, place).items() if not key.startswith("ssq")}
    wide = [2 * n for n in at(s, shape)]
    return [Edit("replace", place, kept | {"op": "gelu", "tanh": False}), Edit("replace", shape, wide)]


def _largest_taken(s: Json) -> list[Edit]:
    place = (*find(s, "select_draw"), "op")
    op = {"op": "select", "best_value": "best_value", "best_index": "best_index"}
    return [Edit("replace", place, at(s, place) | op)]


def _without_filters(s: Json) -> list[Edit]:
    op = at(s, find(s, "peak"))["op"] | {"round": LAST}
    return [Edit("insert", find(s, "draw"), {"op": op, "waits": [], "signals": []})]


def _product_before(s: Json) -> list[Edit]:
    """Of the first token's embedding, whose result nobody reads; there is room for its chunks."""
    weights = field_of("buffers", "weights", "shape")(s)
    barrier = at(s, next(path for path, step in steps(s) if step["op"]["op"] == "barrier"))
    product = at(s, find(s, "gemv", matrix="qkv"))
    product = product | {"op": product["op"] | {"layer": 0}}
    added = (at(s, find(s, "embed")), barrier, product, barrier)
    begin = find(s, "begin")
    return [
        Edit("replace", weights, [2 * n for n in at(s, weights)]),
        *(Edit("insert", after(begin, 1 + n), step) for n, step in enumerate(added)),
    ]


FRAME = [
    Recipe(
        "thresholds-cross",
        Mistake.NO_EPOCHS,
        "fenced",
        "AMK203",
        "a wait for 8t and one for 4: together they ask in the first two tokens for what two good waits ask, but each "
        "wait has its own next threshold, and from the third token on the first one's never comes",
        _thresholds_cross,
    ),
    Recipe(
        "hidden-state-from-embedding",
        Mistake.OTHER_CONSTANT,
        "fenced",
        "AMK105",
        "the norm reads the first row of the embedding, not the hidden state",
        put(op_field("stage_norm", "h"), "embedding"),
    ),
    Recipe(
        "activation-from-weights",
        Mistake.OTHER_CONSTANT,
        "fenced",
        "AMK105",
        "the MLP's activation is read from the packed weights",
        put(op_field("stage", "act"), "weights"),
    ),
    Recipe(
        "rows-from-rotary-table",
        Mistake.OTHER_CONSTANT,
        "tagged",
        "AMK105",
        "query, key and value are read from the rotary table",
        put(op_field("rope_append", "qkv"), "rope"),
    ),
    Recipe(
        "candidates-from-prompt",
        Mistake.OTHER_CONSTANT,
        "fenced",
        "AMK105",
        "the next token is looked up in the prompt",
        put(op_field("select", "best_index"), "prompt"),
    ),
    Recipe(
        "partials-from-weights",
        Mistake.OTHER_CONSTANT,
        "tagged",
        "AMK105",
        "the outputs of the splits are read from the packed weights",
        put(op_field("combine", "split_partial"), "weights"),
    ),
    Recipe(
        "norm-not-filled",
        Mistake.OTHER_CONSTANT,
        "fenced",
        "AMK407",
        "the norms are scratch memory, which the host does not fill",
        put(field_of("buffers", "norm", "role"), "scratch"),
    ),
    Recipe(
        "cache-not-kept",
        Mistake.LOST_STATE,
        "fenced",
        "AMK407",
        "the keys are scratch memory: the next launch finds none of the earlier tokens'",
        put(field_of("buffers", "k_cache", "role"), "scratch"),
    ),
    Recipe(
        "hidden-state-in-cache",
        Mistake.LOST_STATE,
        "fenced",
        "AMK106",
        "the hidden state is handed over where the keys of earlier tokens are",
        lambda s: [
            Edit("replace", field_of("buffers", "k_cache", "dtype")(s), "bf16"),
            *(
                Edit("replace", (*path, "op", "h"), "k_cache")
                for path, step in steps(s)
                if step["op"].get("h") == "h_mid"
            ),
        ],
    ),
    Recipe(
        "staged-in-ring",
        Mistake.REUSED_SLOT,
        "fenced",
        "AMK301",
        "the staged vector has the ring's own name: copies land on it",
        _everywhere("x", "ring"),
    ),
    Recipe(
        "sums-in-mbarriers",
        Mistake.REUSED_SLOT,
        "fenced",
        "AMK301",
        "the sums of squares have the name of the ring's mbarriers",
        _mbarriers_as_sums,
    ),
    Recipe(
        "mbarriers-in-ring",
        Mistake.REUSED_SLOT,
        "fenced",
        "AMK301",
        "the ring's mbarriers are the ring: the first copy lands on them",
        put(field_of("streams", "weights", "full"), "ring"),
    ),
    Recipe(
        "queries-in-partials",
        Mistake.ALIASED_PAGES,
        "fenced",
        "AMK302",
        "one buffer for the queries and for the partials that are computed from them",
        _everywhere("q", "att"),
    ),
    Recipe(
        "tag-grows-by-a-word",
        Mistake.REPEATED_TAG,
        "tagged",
        "AMK513",
        "the tag grows by 2^32 per token: in 32 bits it is the same in all tokens",
        put(field_of("buffers", "h_mid", "tag"), {"t": WORD, "l": 1, "1": 1}),
    ),
    Recipe(
        "tag-of-a-word-is-zero",
        Mistake.REPEATED_TAG,
        "tagged",
        "AMK513",
        "the first tag is 2^32, which is the 0 of zeroed memory",
        put(field_of("buffers", "h_mid", "tag"), {"t": 2, "l": 1, "1": WORD}),
    ),
    Recipe(
        "threshold-beyond-a-word",
        Mistake.LAUNCH_LIMITS,
        "fenced",
        "AMK204",
        "workers of the second head wait for 2^32 more, which is nothing in 32 bits",
        put(wait_of("best", "at_least"), {"t": W, "1": W, "attn.head": WORD}),
    ),
    Recipe(
        "squares-without-rows",
        Mistake.SHARED_ROWS,
        "rows",
        "AMK103",
        "the sums of squares have room for two rows of three: divided by the rows that is 0, so all rows are the first",
        put(field_of("buffers", "ssq", "shape"), [2]),
    ),
    Recipe(
        "live-positions-too-few",
        Mistake.OTHER_SEQUENCE,
        "live",
        "AMK103",
        "the launch state has a position for one sequence of two: the other's is read behind its end",
        put(field_of("buffers", "state", "shape"), [5]),
    ),
    Recipe(
        "live-position-for-all",
        Mistake.OTHER_SEQUENCE,
        "live",
        "AMK103",
        "both sequences are taken to be at the first one's position, and the second one's is never moved on",
        drop(lambda _: ("live",)),
    ),
    Recipe(
        "live-cache-of-another",
        Mistake.OTHER_SEQUENCE,
        "live",
        "AMK102",
        "a worker of the second sequence appends to the first one's cache, at the first one's position",
        put(lambda _: ("tables", "attn.head"), [0, 1, 0, 3]),
    ),
    Recipe(
        "codes-of-a-batch-in-digits",
        Mistake.OTHER_LAYOUT,
        "coded",
        "AMK405",
        "several sequences are multiplied with codes in bf16; the vector is staged as the digits of a single one's",
        put(field_of("buffers", "x", "dtype"), "digits"),
    ),
    Recipe(
        "codes-in-parts-that-cut-chunks",
        Mistake.CUT_CHUNKS,
        "coded",
        "AMK405",
        "down has four chunks of 192 columns for its 640, two for each half of 320: the second half begins within a "
        "chunk, so the product of the first one goes on into columns that are not staged",
        _chunks_across_parts,
    ),
    Recipe(
        "empty-waits-for-barriers",
        Mistake.EMPTY_WAIT,
        "fenced",
        "AMK302",
        "a wait for nothing stands where the warps of a worker met: a warp adds sums up that others still write",
        _empty_waits,
    ),
    Recipe(
        "empty-waits-of-one-warp",
        Mistake.EMPTY_WAIT,
        "alone",
        "SAFE",
        "one warp a worker needs no barrier of the block, but its lanes have to meet between two steps on the same "
        "bytes; a wait for nothing prints nothing, so the lowering prints a barrier of the warp there",
        _empty_waits,
        "SAFE",
    ),
    Recipe(
        "token-not-chosen",
        Mistake.OTHER_GRAPH,
        "fenced",
        "AMK106",
        "two workers end a token as a slice of layers does: position and epoch go on, the token stays the first one",
        lambda s: two_programs(s, _as_in_a_slice),
    ),
    Recipe(
        "hidden-state-of-a-slice",
        Mistake.OTHER_GRAPH,
        "fenced",
        "AMK106",
        "a whole model begins with the hidden state that a slice of layers is given, whatever the token is",
        _given_hidden,
    ),
    Recipe(
        "activation-of-another-family",
        Mistake.OTHER_GRAPH,
        "fenced",
        "AMK106",
        "rows of gate and up go through GELU each, and the first half of them is taken for the activation",
        _activated_otherwise,
    ),
    Recipe(
        "largest-logit-of-a-draw",
        Mistake.OTHER_GRAPH,
        "drawing",
        "AMK106",
        "a schedule that draws its tokens takes the largest logit all the same",
        _largest_taken,
    ),
    Recipe(
        "filters-forgotten",
        Mistake.OTHER_GRAPH,
        "drawing",
        "AMK106",
        "the search for a cut starts again behind its last round, with no row dropped",
        _without_filters,
    ),
    Recipe(
        "product-before-the-loop",
        Mistake.OTHER_GRAPH,
        "fenced",
        "AMK106",
        "a product is done before the first token as well: the copies of every token begin with its chunks, and the "
        "tokens behind the first one drain them where they want their own",
        _product_before,
    ),
]
