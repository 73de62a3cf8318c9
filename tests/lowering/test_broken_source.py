"""The text of deliberately broken kernels (`tests/gpu/broken.py`), as far as it can be checked without a GPU."""

from __future__ import annotations

import pytest

from amk.lowering import emit as emitter
from amk.lowering.compile import compile_cuda
from tests.gpu.broken import CYCLES, sample, source


@pytest.mark.turns(12)
def test_a_delay_stands_before_the_step_of_the_witness_and_compiles() -> None:
    races = [b for b in sample(8) if b.places]
    assert races
    broken = races[0]
    place = broken.places[0]
    text = source(broken.schedule, place)
    plain = emitter.emit(broken.schedule)
    assert plain == source(broken.schedule, None) and "clock64" not in plain
    assert text.count("clock64() <") == 1 and f"c.worker == {place.worker} && c.warp == {place.warp}" in text
    assert text.replace(place.delay(), "").split() == plain.split() and str(CYCLES) in text
    assert compile_cuda(text, broken.schedule.target.arch).cubin
