"""Bits of approximate instructions that come from outside: of them alone, and each asked for once."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("numba", reason="the emulator is compiled")

PROGRAM = """
import numpy as np
from tests.emulator.hardware_exact import asked, rounded_once
from tests.emulator.hardware_values import take
from tests.emulator.instructions import ONE, emulated, operands

values = take(lambda name, a, b: rounded_once(name, a, b) + 1)
words = operands("div.approx.f32")[:8]
words[:, :, 16:] = words[:, :, :16]
for name in ONE:
    expected = [[rounded_once(name, int(a), int(b)) + 1 for a, b in zip(*one)] for one in words & 0x7FFFFFFF]
    found = emulated(name, words & 0x7FFFFFFF)
    assert (found[:, 0] == np.array(expected)).all(), name
    told = asked(values)[name]
    assert told == {"run": 256, "inputs": 128, "rounded otherwise": 128, "most units of the last place": 1}, told
whole = emulated("div.rn.f32", words).view(np.float32)[:, 0]
assert (whole == words.view(np.float32)[:, 0] / words.view(np.float32)[:, 1]).all()
values.value = lambda *_: 1 // 0
emulated("ex2.approx.f32", words + 1)
try:
    asked(values)
except RuntimeError as error:
    assert "ZeroDivisionError" in str(error)
else:
    raise AssertionError("nobody saw the error")
print("all as asked")
"""


@pytest.mark.turns(4)
def test_values_from_outside_replace_approximate_instructions_alone() -> None:
    """In a process of its own, whose emulator stays so."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "all as asked", done.stderr
