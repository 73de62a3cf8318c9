"""Mistakes in batches whose workers serve several KV heads in turns: heads of nobody or of two, arrays of two turns."""

from __future__ import annotations

from amk.adversary.edits import Edit, Json, after, at, find, named
from amk.adversary.mistakes import Mistake
from amk.adversary.recipe import Make, Recipe, drop, put


def _without_barrier_behind(op: str) -> Make:
    return drop(lambda s: after(find(s, op)))


def _cut(buffer: str) -> Make:
    """The array has room for the first turn alone."""

    def make(s: Json) -> list[Edit]:
        place = (*named(s, "buffers", buffer), "shape")
        rows, *rest = at(s, place)
        return [Edit("replace", place, [rows // s["kv"]["turns"], *rest])]

    return make


def _onto_the_last_turn(s: Json) -> list[Edit]:
    """The partials begin where the queries of the last turn do, which nobody of the first turn reads."""
    queries = at(s, named(s, "buffers", "q"))
    vectors, dim = queries["shape"]
    place = queries["offset"] + 4 * dim * (vectors - vectors // s["kv"]["turns"])
    return [Edit("replace", (*named(s, "buffers", "att"), "offset"), place)]


def _live(s: Json) -> list[Edit]:
    """Every sequence has a position of its own."""
    words = at(s, named(s, "buffers", "state"))["shape"][0] + s["batch"] - 1
    return [
        Edit("insert", ("live",), True),
        Edit("replace", (*named(s, "buffers", "state"), "shape"), [words]),
    ]


TURNS = [
    Recipe(
        "heads-of-no-turn",
        Mistake.UNCOVERED_OUTPUT,
        "turns",
        "AMK101",
        "each worker serves one KV head, and half of the heads are served by nobody",
        drop(lambda _: ("kv", "turns")),
    ),
    Recipe(
        "turns-of-fewer-heads",
        Mistake.OVERLAPPING_SHARES,
        "turns",
        "AMK103",
        "of three turns each has two heads, so the third worker serves the heads of the first one a turn later",
        put(lambda _: ("kv", "turns"), 3),
    ),
    Recipe(
        "head-of-two-turns",
        Mistake.OVERLAPPING_SHARES,
        "turns",
        "AMK103",
        "the fourth worker serves a head in its first turn that the first worker serves in its second",
        put(lambda s: ("tables", "attn.head", 3), 3),
    ),
    Recipe(
        "head-of-two-workers-in-turns",
        Mistake.OVERLAPPING_SHARES,
        "turns",
        "AMK102",
        "two workers append the same cache rows, in each of their turns",
        put(lambda s: ("tables", "attn.head", 3), 2),
    ),
    Recipe(
        "queries-of-one-turn",
        Mistake.OUT_OF_BOUNDS,
        "turns",
        "AMK103",
        "the queries of the second turn lie behind the array's end",
        _cut("q"),
    ),
    Recipe(
        "partials-of-one-turn",
        Mistake.OUT_OF_BOUNDS,
        "turns of two",
        "AMK103",
        "the partials of the second turn lie behind the array's end",
        _cut("att"),
    ),
    Recipe(
        "partials-on-queries-of-another-turn",
        Mistake.ALIASED_PAGES,
        "turns",
        "AMK302",
        "the warp of the first turn leaves its partials where the warp of the second one still reads its queries",
        _onto_the_last_turn,
    ),
    Recipe(
        "turns-of-two-warps-without-barrier",
        Mistake.DROPPED_BARRIER,
        "turns of two",
        "AMK302",
        "two warps share a turn, and one of them reads queries that the other rotates",
        _without_barrier_behind("rope_append"),
    ),
    Recipe(
        "turns-at-positions-of-their-own",
        Mistake.OTHER_SEQUENCE,
        "turns",
        "AMK106",
        "a worker has one position, and its turns are of two sequences",
        _live,
    ),
    Recipe(
        "turns-of-one-warp-without-barriers",
        Mistake.DROPPED_BARRIER,
        "turns",
        "SAFE",
        "a warp has a turn to itself: what it reads of queries and partials it has written",
        lambda s: [Edit("remove", after(find(s, op))) for op in ("attend", "rope_append")],
        "SAFE",
    ),
]
