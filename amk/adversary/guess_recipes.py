"""Mistakes in steps that accept guesses: who decides how many are right, from what, and what becomes of the others."""

from __future__ import annotations

from amk.adversary.edits import Edit, Json, at, find, named, waiting
from amk.adversary.mistakes import Mistake
from amk.adversary.recipe import Recipe, exchange, put


def _apart(s: Json) -> list[Edit]:
    """Worker 0 runs a copy of the program; what chooses there reads candidates that nobody awaits."""
    (program,) = s["programs"]
    first = program | {"name": "hasty", "count": 1}
    rest = program | {"first": 1, "count": program["count"] - 1}
    path = (*waiting(s, "best"), "waits")
    return [
        Edit("replace", ("programs", 0), first),
        Edit("insert", ("programs", 1), rest),
        Edit("replace", path, []),
    ]


GUESSES = [
    Recipe(
        "guesses-of-one-row",
        Mistake.GUESSES_WITHOUT_ROWS,
        "fenced",
        "AMK106",
        "a step of one row has no row for a guess, and output no room to say that one was wrong",
        put(lambda _: ("accepts",), True, new=True),
    ),
    Recipe(
        "guesses-accepted-early",
        Mistake.UNAWAITED_ACCEPTANCE,
        "guesses",
        "AMK302",
        "the tokens behind the rows are chosen before all workers have told their candidates: each worker accepts "
        "another number of guesses, and goes on at another position",
        put(lambda s: (*waiting(s, "best"), "waits"), []),
    ),
    Recipe(
        "guesses-accepted-early-by-one",
        Mistake.UNAWAITED_ACCEPTANCE,
        "guesses",
        "AMK302",
        "one worker of four accepts guesses before the others have told their candidates",
        _apart,
    ),
    Recipe(
        "rejected-rows-attended",
        Mistake.REJECTED_ROWS,
        "guesses",
        "AMK104",
        "attention comes before its step's queries and rows are there: at their places in the cache are rows of "
        "guesses that the step before rejected, or none",
        lambda s: exchange(s, (*find(s, "rope_append"), "op"), (*find(s, "attend"), "op")),
    ),
    Recipe(
        "guesses-chosen-twice",
        Mistake.UNAWAITED_ACCEPTANCE,
        "guesses",
        "AMK106",
        "the position moves on twice in a step",
        lambda s: [Edit("insert", find(s, "select"), {"op": at(s, find(s, "select"))["op"]})],
    ),
    Recipe(
        "output-of-fewer-rows",
        Mistake.GUESSES_WITHOUT_ROWS,
        "guesses",
        "AMK103",
        "output has a word for each step, not for each row, so rejected rows fall on the next step's",
        lambda s: [Edit("replace", (*named(s, "buffers", "output"), "shape"), [s["launch"]["max_tokens"], 1])],
    ),
]
