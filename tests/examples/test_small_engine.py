"""The example gives the tokens of the whole model, with the layers in one call and in several."""

from __future__ import annotations

from pathlib import Path

import pytest

from amk.engine.backends.cpu_engine import CpuEngine
from tests.engine.tiny import RandomTensors, reference_decoder, tiny_model, tiny_plan
from tests.reference.llama_numpy import greedy

pytest.importorskip("torch", reason="the example is an engine in torch")

from tests.examples import small_engine

MODEL = tiny_model(layers=3)
PROMPT = [3, 17, 40]


@pytest.mark.turns(24)
@pytest.mark.parametrize("cuts", [(), (1,), (1, 2)])
def test_it_gives_the_tokens_of_the_whole_model(cuts: tuple[int, ...]) -> None:
    source = RandomTensors(MODEL)
    engine = small_engine.SmallEngine(source, MODEL, 32, "interpreter", cuts)
    whole = CpuEngine(tiny_plan(MODEL, context=32), source, numerics="device")
    whole.request_batch([PROMPT])
    expected = whole.step(len(PROMPT) + 5)[len(PROMPT) - 1 :].tolist()
    assert engine.generate(PROMPT, 6) == expected
    assert engine.generate(PROMPT, 6) == expected  # a second text in the same caches
    assert expected == [token for token, _ in greedy(reference_decoder(MODEL, source.arrays), PROMPT, (), 6)]


def test_it_is_short() -> None:
    assert len(Path(small_engine.__file__).read_text(encoding="utf-8").splitlines()) <= 80
