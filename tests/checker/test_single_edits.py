"""A slice of the single edits (the rest is `python -m tests.checker.single_edits`), and that a hole would be seen."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.checker.single_edits import Base, edited, edits, tokens_of
from tests.validator.plans import from_document


@pytest.mark.turns(4)
def test_no_accepted_edit_computes_something_else() -> None:
    base = Base("fenced")
    found = Counter(base.judge(path, value) for path, value in edits(base.document)[:45])
    assert set(found) <= {"ill-formed", "refused", "accepted"} and found["refused"] > 5
    assert base.judge(("launch", "registers"), 128) == "accepted"


def test_a_hole_would_be_seen() -> None:
    """What the checker refuses, run all the same."""
    base = Base("fenced")
    raised = next(
        (path, {"t": 8}) for path, _ in edits(base.document) if path[-2:] == ("at_least", "1") and "waits" in path
    )
    document = edited(base.document, raised[0][:-1], raised[1])
    assert tokens_of(from_document(document), "round-robin") != base.tokens
