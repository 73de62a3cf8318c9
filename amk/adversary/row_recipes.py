"""Mistakes about how long a row or a vector in an array is, and where the next one begins."""

from __future__ import annotations

from math import prod

from amk.adversary.edits import Edit, Json, at, named, steps
from amk.adversary.mistakes import Mistake
from amk.adversary.recipe import Make, Recipe


def _shorter_rows(s: Json) -> list[Edit]:
    """What one warp counts for each sequence begins from cuts that it reads under another name, in rows of one warp."""
    place = named(s, "buffers", "pick")
    array = at(s, place)
    shape = [array["shape"][0], 1, array["shape"][2]]
    barrier = at(s, next(path for path, step in steps(s) if step["op"]["op"] == "barrier"))
    counts = [path for path, step in steps(s) if step["op"]["op"] == "census"]
    reports = [path for path, step in steps(s) if step["op"]["op"] == "report"]
    role = at(s, reports[0])["op"]["role"]
    alone = {"role": role, "pick": "pick_of_one"}
    return [
        Edit("insert", (*place[:-1], len(s["buffers"])), array | {"name": "pick_of_one", "shape": shape}),
        *(Edit("replace", (*path, "op", "tally_agents"), 1) for path in reports),
        *(Edit("replace", (*path, "op"), at(s, path)["op"] | alone) for path in counts),
        *(Edit("insert", path, barrier) for path in reversed(counts)),
    ]


def _odd_rows(s: Json) -> list[Edit]:
    """The rows of the sums are a word longer, behind all other arrays."""
    place, end = named(s, "buffers", "tally"), s["launch"]["shared_bytes"]
    array = at(s, place)
    rows, words = array["shape"][0], prod(array["shape"][1:]) + 1
    at_end = -(-end // 128) * 128
    return [
        Edit("replace", place, array | {"shape": [rows, words], "offset": at_end}),
        Edit("replace", ("launch", "shared_bytes"), at_end + 4 * rows * words),
    ]


def _longer(name: str, by: int) -> Make:
    """Each worker's slice of an array has so many elements more."""

    def make(s: Json) -> list[Edit]:
        place = (*named(s, "buffers", name), "shape")
        shape = at(s, place)
        return [Edit("replace", place, [shape[0], prod(shape[1:]) + by])]

    return make


def _behind_the_vector(s: Json) -> list[Edit]:
    """The sums of squares lie where the vector's elements end, within its last block."""
    vector, squares = named(s, "buffers", "x_head"), named(s, "buffers", "ssq")
    end = at(s, vector)["offset"] + 2 * s["model"]["hidden"]
    return [Edit("replace", squares, at(s, squares) | {"offset": end, "align": 16})]


def _first_part(s: Json) -> list[Edit]:
    """Of attention's outputs the first half is staged, and their block filled up with zeros."""
    place = next(path for path, step in steps(s) if step["op"]["op"] == "stage_attention")
    return [Edit("replace", (*place, "op"), at(s, place)["op"] | {"k_parts": 2})]


def _outputs_for_nobody(s: Json) -> list[Edit]:
    """Attention's outputs are reduced once more, into an array of longer rows that nobody reads."""
    place = next(path for path, step in steps(s) if step["op"]["op"] == "reduce_splits")
    array, step = at(s, named(s, "buffers", "attn")), at(s, place)
    rows, outputs = array["shape"]
    again = {"op": step["op"] | {"attn": "attn_again"}, "waits": [], "signals": []}
    return [
        Edit("insert", ("buffers", len(s["buffers"])), array | {"name": "attn_again", "shape": [rows, outputs + 2]}),
        Edit("insert", (*place[:-1], int(place[-1]) + 1), again),
    ]


def _normed_by_one(s: Json) -> list[Edit]:
    """One warp of a worker norms all of every hidden state."""
    normed = [path for path, step in steps(s) if step["op"]["op"] in ("embed", "stage_norm", "layer_norm")]
    read = [path for path, step in steps(s) if "ssq_agents" in step["op"]]
    return [
        *(Edit("replace", (*path, "op", "role"), "w0") for path in normed),
        *(Edit("replace", (*path, "op", "ssq_agents"), 1) for path in read),
    ]


ROWS = [
    Recipe(
        "cut-of-another-sequence",
        Mistake.SHARED_ROWS,
        "drawn batch",
        "AMK104",
        "the cuts of a search are read in rows of one warp, and lie in rows of two: the second sequence's counts begin "
        "from the cut that the first one's second warp has",
        _shorter_rows,
    ),
    Recipe(
        "row-of-odd-words",
        Mistake.ODD_WORDS,
        "drawn batch",
        "AMK407",
        "the second sequence's sums of two words begin at an odd word, and the device stores both words at once",
        _odd_rows,
    ),
    Recipe(
        "slice-of-odd-words",
        Mistake.ODD_WORDS,
        "nine rows",
        "AMK407",
        "the second worker's sums of lm_head begin at an odd word, and the device stores two words at once",
        _longer("head_part", 1),
    ),
    Recipe(
        "squares-behind-second-layout",
        Mistake.ALIASED_PAGES,
        "layouts",
        "AMK301",
        "the sums of squares lie behind the elements of a vector in bf16, which is staged beside one in blocks and "
        "filled up with zeros to the end of its last block",
        _behind_the_vector,
    ),
    Recipe(
        "zeros-for-columns",
        Mistake.CUT_BLOCK,
        "reduced",
        "AMK106",
        "the first half of attention's outputs is staged as a part of two, and the zeros that fill up its block lie "
        "where the product reads the second half",
        _first_part,
    ),
    Recipe(
        "outputs-between-stores",
        Mistake.SHARED_ROWS,
        "rows",
        "AMK106",
        "four outputs with tags are stored at once, and the second row of an array of outputs begins between two such "
        "places",
        _outputs_for_nobody,
    ),
    Recipe(
        "pairs-of-odd-rows",
        Mistake.ODD_WORDS,
        "rows",
        "AMK407",
        "the second row's queries, keys and values begin at an odd word, and the device reads two words at once",
        _longer("qkv", 1),
    ),
    Recipe(
        "norm-of-two-batches",
        Mistake.LONG_SHARE,
        "long",
        "AMK407",
        "one warp norms all of a hidden state, more than the device code has in flight at once",
        _normed_by_one,
    ),
    Recipe(
        "blocks-without-lanes",
        Mistake.LONG_SHARE,
        "long in blocks",
        "AMK407",
        "one warp norms all of a hidden state in blocks, of which there are more than lanes for their scales",
        _normed_by_one,
    ),
]
