"""A sum over a part of the columns says of which: one of a part of another width is another sum."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.adversary.edits import Edit, Json, apply, at, steps
from amk.adversary.neighbourhood.bases import _small, base
from amk.adversary.neighbourhood.mutator import Change
from amk.adversary.neighbourhood.survey import Survey
from amk.planner.settings import FAST


def quarters() -> Json:
    """A step of eight rows that has its columns in four parts."""
    settings = replace(FAST, handoff="mixed", warps=2, rows=8, chunk_bytes=512, x_parts=4, k_parts=4)
    return _small(settings, layers=1, hidden=128, ffn=128, heads=4, kv_heads=2)


def first_norm(document: Json) -> tuple[str | int, ...]:
    return next(path for path, step in steps(document) if step["op"]["op"] == "stage_norm")


@pytest.mark.parametrize("where", [0, -1])
def test_a_norm_that_begins_with_a_wider_part_is_refused(where: int) -> None:
    """Half of the columns are there, where a quarter is read, and its squares are added once more."""
    document = quarters()
    firsts = [p for p, s in steps(document) if s["op"]["op"] == "stage_norm" and not s["op"].get("k_part")]
    outcome = Survey(document).outcome(Change("", "", (Edit("replace", (*firsts[where], "op", "k_parts"), 2),)))
    assert (outcome.verdict, outcome.codes, outcome.certificate) == ("UNSAFE", ("AMK104",), "refused"), outcome
    assert outcome.judge == "refuted: logits"


def test_the_checker_refuses_squares_of_a_narrower_part() -> None:
    """The validator has every step once; the checker goes by what is read."""
    document = base("rows, all in parts")
    path = first_norm(document)
    body, number = path[:-1], int(path[-1])
    norm, barrier = at(document, path), at(document, (*body, number + 1))
    narrower = norm | {"op": norm["op"] | {"k_parts": 4}}
    edits = [Edit("insert", (*body, number + 1), barrier), Edit("insert", (*body, number + 2), narrower)]
    assert apply(document, edits)[0] != document and barrier["op"]["op"] == "barrier"
    outcome = Survey(document).outcome(Change("", "", tuple(edits)))
    assert (outcome.verdict, outcome.codes, outcome.certificate) == ("UNSAFE", ("AMK106",), "refused"), outcome
    assert outcome.judge == "refuted: logits"
