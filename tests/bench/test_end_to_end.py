"""Texts as a user times them: what counts, and that transformers computes the same model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amk.bench.end_to_end import Launched, amk_text, generation, in_turn
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.schedule_backend import ScheduleBackend
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan
from tests.tiny import BIASED, PLAIN, RAGGED


class Clock:
    """Advances by what the text says it takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def text(self, tokens: list[int], first: float, each: float) -> Iterator[int]:
        for n, token in enumerate(tokens):
            self.now += each if n else first
            yield token


def test_the_first_token_and_all_of_them() -> None:
    clock = Clock()
    found = generation(lambda: clock.text([5, 6, 7], 2.0, 0.5), clock)
    assert (found.first, found.total, found.tokens) == (2.0, 3.0, (5, 6, 7))
    with pytest.raises(ValueError, match="without tokens"):
        generation(lambda: iter(()), clock)


def test_programs_take_turns_and_the_first_round_does_not_count() -> None:
    clock, slow = Clock(), iter([100.0, 3.0, 1.0, 2.0])
    texts = {
        "own": lambda: clock.text([1, 2, 3, 4], 0.25, 0.25),
        "other": lambda: clock.text([1, 2, 9, 4], next(slow), 0.0),
    }
    own, other = in_turn(texts, 16, 3, clock)
    assert own.prompt == other.prompt == 16
    assert (own.total_ms, own.first_ms, own.each_ms, own.tokens_per_second, own.agrees) == (
        1000.0,
        250.0,
        250.0,
        4.0,
        4,
    )
    assert (other.total_ms, other.least_ms, other.most_ms, other.agrees) == (2000.0, 1000.0, 3000.0, 2)


@pytest.mark.parametrize("model", [PLAIN, RAGGED], ids=lambda model: model.name)
def test_transformers_computes_the_same_model(model: ModelSpec) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from amk.bench.end_to_end import transformers_model, transformers_text
    from amk.bench.tools.torch_model import TorchDecoder, TorchWeights

    weights = TorchWeights.random(model, 3, device="cpu")
    for name, rows in weights.matrices.items():
        weights.matrices[name] = [each.float() for each in rows]
    weights.embedding = weights.embedding.float()
    prompt, shape = [5, 100, 7], (model.layers, model.kv_heads, 16, model.head_dim)
    decoder = TorchDecoder(weights, torch.zeros(shape), torch.zeros(shape), torch.float32)
    for pos, token in enumerate(prompt):
        expected = decoder.step(torch.tensor([token]), pos, decoder.rope(pos))
    transformer = transformers_model(model, weights, 16)
    with torch.no_grad():
        found = transformer(torch.tensor([prompt])).logits[0, -1]
    assert torch.dist(found, expected) < 1e-4 * expected.norm()
    tokens = list(transformers_text(transformer, prompt, 4))
    assert len(tokens) == 4 and tokens[0] == int(expected.argmax())


def test_a_model_that_transformers_llama_does_not_have_is_refused() -> None:
    from amk.bench.end_to_end import transformers_model

    with pytest.raises(AmkError, match="AMK005"):
        transformers_model(BIASED, None, 16)


def test_every_text_is_read_from_its_first_token_on() -> None:
    """Slices of two tokens, the last one short; a second text does not use the cache of the first."""
    model = tiny_model()
    backend = ScheduleBackend(CpuEngine(tiny_plan(model, context=16), RandomTensors(model)), 2)
    first = list(amk_text(backend, [3, 17, 5], 3))
    assert len(first) == 3 and list(amk_text(backend, [3, 17, 5], 3)) == first
    assert list(Launched(backend, [3, 17, 5], 3)()) == list(amk_text(backend, [3, 17, 5], 3)) == first
    backend.forget()
    backend.extend([3, 17, 5], 1, GREEDY, ())
    assert backend.cached == 0
