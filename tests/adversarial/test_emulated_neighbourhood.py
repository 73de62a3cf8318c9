"""The recorded run that emulates SAFE edits tells one whose kernel computes something else, and no other."""

from __future__ import annotations

import json

import pytest

from amk.adversary.neighbourhood.bases import WHOLE
from tests.adversarial import emulated_neighbourhood
from tests.adversarial.emulated_neighbourhood import PARTS, edits_of, emulated_slice, ordered

BASE = "fenced, heads apart"


def test_parts_are_all_edits_and_the_first_have_every_field() -> None:
    parts = [edits_of(BASE, part) for part in range(PARTS)]
    assert [change for part in parts for change in part] == ordered(BASE)
    fields = {change.field for change in ordered(BASE)}
    assert {change.field for change in ordered(BASE)[: len(fields)]} == fields


def test_a_kernel_that_computes_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ordered(BASE)
    wrong = next(c for c in changes if c.field == "StageNormOp.h" and json.loads(c.key)[0][2] == "embedding")
    right = next(c for c in changes if c.field == "ModelSpec.name")
    monkeypatch.setattr(emulated_neighbourhood, "edits_of", lambda *_: [right, wrong])
    monkeypatch.setattr(emulated_neighbourhood, "EVERYTHING", 1)
    monkeypatch.setattr(emulated_neighbourhood, "verdict_of", lambda _: "SAFE")
    found = emulated_slice(WHOLE.index(BASE))
    (told,) = found["differences"]
    assert wrong.key in told and found["rulings"] == {"not refuted": 1, "refuted": 1}
    assert found["kernels"] == 2 and found["run"] == {right.field: 1, wrong.field: 1}
