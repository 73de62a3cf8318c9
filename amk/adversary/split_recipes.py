"""Mistakes about products whose columns are divided among workers with the same rows."""

from __future__ import annotations

from amk.adversary.edits import Edit, Json, at, find, named, steps
from amk.adversary.mistakes import Mistake
from amk.adversary.recipe import Recipe, put


def _same_share(s: Json) -> list[Edit]:
    """The second worker multiplies the columns that the first one has."""
    return [Edit("replace", ("tables", "k_split.index", 1), s["tables"]["k_split.index"][0])]


def _untagged(s: Json) -> list[Edit]:
    """The sums of o are plain numbers, and no counter says that they are there."""
    place = named(s, "buffers", "sums_o")
    return [Edit("replace", place, at(s, place) | {"tagged": False, "tag": None})]


def _one_buffer(s: Json) -> list[Edit]:
    """The sums of `down` are published where those of o of the same layer are, with the same tag."""
    return [
        Edit("replace", (*path, "op", "k_sums"), "sums_o")
        for path, step in steps(s)
        if step["op"].get("k_sums") == "sums_down"
    ]


def _added_as_whole(s: Json) -> list[Edit]:
    """A worker adds the sums over its own share of the columns of o, as if they were over all of them."""
    stored, added = find(s, "store_sums", matrix="o"), find(s, "add_sums", matrix="o")
    op = at(s, added)["op"]
    whole = {key: op[key] for key in ("role", "matrix", "layer", "stream", "residual", "h")}
    part = at(s, stored)["op"]["part"]
    return [
        Edit("replace", (*added, "op"), whole | {"op": "add_residual", "part": part}),
        Edit("remove", stored),
    ]


def _staged_as_whole(s: Json) -> list[Edit]:
    """Of the activations every worker stages the first share of the columns, whichever it multiplies."""
    place = find(s, "stage")
    return [Edit("replace", (*place, "op"), at(s, place)["op"] | {"k_parts": 2, "k_splits": 1})]


SPLITS = [
    Recipe(
        "share-of-columns-twice",
        Mistake.OVERLAPPING_SHARES,
        "divided",
        "AMK102",
        "two workers multiply the same rows with the same share of the columns, and nobody with the other one",
        _same_share,
    ),
    Recipe(
        "share-of-columns-missing",
        Mistake.UNCOVERED_OUTPUT,
        "divided",
        "AMK101",
        "of a row group nobody multiplies one share of the columns",
        lambda s: [Edit("replace", ("tables", "k_split.count", 0), s["tables"]["k_split.count"][0] - 1)],
    ),
    Recipe(
        "sums-of-shares-without-words",
        Mistake.DROPPED_WAIT,
        "divided",
        "AMK302",
        "sums over shares of the columns are read as soon as the reader's own are published, and nothing says that "
        "those of others are",
        _untagged,
    ),
    Recipe(
        "sums-of-two-products",
        Mistake.STALE_READ,
        "divided",
        "AMK513",
        "sums of o and of `down` are words of one buffer with one tag for a layer: the reader takes one for the other",
        _one_buffer,
    ),
    Recipe(
        "share-added-as-whole",
        Mistake.STALE_READ,
        "divided",
        "AMK104",
        "the sums over a worker's share of the columns are added to the residual as if they were over all columns",
        _added_as_whole,
    ),
    Recipe(
        "share-staged-as-whole",
        Mistake.CUT_BLOCK,
        "divided",
        "AMK405",
        "every worker stages the first half of the activations, and half of the workers multiply the second half",
        _staged_as_whole,
    ),
    Recipe(
        "fewer-shares-added",
        Mistake.SPLIT_COUNT,
        "divided",
        "AMK405",
        "four shares are counted where columns are divided among two",
        put(lambda s: (*find(s, "add_sums", matrix="down"), "op", "k_splits"), 4),
    ),
]
