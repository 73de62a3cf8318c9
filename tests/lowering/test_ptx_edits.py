"""Edits of synchronising instructions of compiled kernels: refused, or without a difference in the emulator."""

from __future__ import annotations

from random import Random

import pytest

from tests.cases import commits
from tests.lowering.edits.of_ptx import PtxEdit
from tests.lowering.edits.ptx_run import KERNELS, ordered, outcome, places

pytest.importorskip("numba")

DRAWN = 8
WEAKER = (
    "left out", "opcode .release .relaxed", "opcode .acquire .relaxed", "opcode .gpu .cta", "opcode .relaxed.gpu ",
    "opcode (?<=bar).sync .arrive", "opcode (?<=ld).global .global.nc",
)  # fmt: skip
BESIDE = ("branch", "comparison", "load", "store", "watchdog")
"""Kinds of places that do not synchronise themselves."""


def synchronises(edit: PtxEdit) -> bool:
    return edit.rule in WEAKER and not edit.kind.startswith(BESIDE)


@pytest.mark.turns(32)
@pytest.mark.parametrize("name", KERNELS)
def test_synchronisation_that_is_weaker_or_missing_is_refused_or_shows_nothing(name: str) -> None:
    """Others at every commit. Most are refused: a test of the read-back alone would not see one that should be."""
    edits = [edit for edit in ordered(name) if synchronises(edit)]
    found = {}
    for edit in Random(f"{commits()} {name}").sample(edits, DRAWN):
        found[edit.name(places(name).lines)] = outcome(name, edit)
    assert [f"{where}: {told}" for where, told in found.items() if told.startswith("refuted")] == []
    assert sum(told.startswith("refused") for told in found.values()) >= DRAWN // 2
