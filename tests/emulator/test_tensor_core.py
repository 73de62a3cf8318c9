"""Sums of products beside those that an H100 computed, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.emulator.instructions import MMA, emulated, operands

RECORDED = Path(__file__).parents[1] / "data" / "h100-mma.json"


def test_every_sum_has_the_bits_of_an_h100() -> None:
    there = np.array(json.loads(RECORDED.read_text())["words"], np.uint32).reshape(-1, 4, 32)
    np.testing.assert_array_equal(emulated(MMA, operands(MMA)[: len(there)]), there)
