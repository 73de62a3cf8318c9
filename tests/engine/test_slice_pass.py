"""A model as two schedules: hidden states come out and embeddings go in, on each device that runs schedules without a
GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.engine.backends.forward import Part
from amk.engine.backends.slice_pass import SlicePass
from amk.engine.backends.text_cache import TextCache
from amk.report.diagnostic import AmkError
from tests.engine import tiny_chat

PROMPT = "ABABAB WAS AB"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat.write(tmp_path_factory.mktemp("models") / "tiny", layers=2)


@pytest.fixture(scope="module")
def exact(directory: Path) -> Iterator[amk.LanguageModel]:
    with amk.load(directory, device="cpu", max_context=64) as model:
        yield model


@pytest.fixture(scope="module")
def model(directory: Path) -> Iterator[amk.LanguageModel]:
    with amk.load(directory, device="interpreter", max_context=64, states=True) as found:
        yield found


def close(actual: Any, expected: Any, part: float) -> None:
    np.testing.assert_allclose(actual, expected, atol=part * np.abs(expected).max())


@pytest.mark.turns(4)
def test_nobody_else_writes_to_its_cache(model: amk.LanguageModel) -> None:
    """Its texts are in the memory of a schedule, of which a caller gets no view."""
    assert not model.lend(model.encode(PROMPT), lambda place, sequence: True)


@pytest.mark.turns(4)
def test_states_out_and_embeddings_in(model: amk.LanguageModel, exact: amk.LanguageModel) -> None:
    """As the device cpu tells and takes them, but for the rounding of weights and caches to bf16."""
    tokens = model.encode(PROMPT)
    close(model.hidden(PROMPT), exact.hidden(PROMPT), 0.02)
    close(model.logits(PROMPT), exact.logits(PROMPT), 0.02)
    rows = model.embeddings(tokens)
    np.testing.assert_array_equal(rows, exact.embeddings(tokens))
    np.testing.assert_array_equal(model.logits(rows), model.logits(tokens))
    np.testing.assert_array_equal(model.hidden(rows), model.hidden(tokens))
    assert model.generate(rows, max_tokens=4).tokens == model.generate(tokens, max_tokens=4).tokens
    moved = rows + np.float32(1)
    assert np.abs(model.hidden(moved) - model.hidden(rows)).max() > 0.1
    close(model.hidden(moved), exact.hidden(moved), 0.02)


@pytest.mark.turns(4)
def test_logits_and_answers_are_those_of_the_whole_schedule(model: amk.LanguageModel, directory: Path) -> None:
    with amk.load(directory, device="interpreter", max_context=64) as whole:
        np.testing.assert_array_equal(model.logits(PROMPT), whole.logits(PROMPT))
        for options in ({}, {"temperature": 0.9, "top_k": 20, "seed": 3}):
            asked: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True} | options
            assert model.generate(PROMPT, **asked).tokens == whole.generate(PROMPT, **asked).tokens


def test_candidates_are_scored_as_paths(model: amk.LanguageModel, exact: amk.LanguageModel) -> None:
    """Nodes of a tree take the same positions; what stays in the cache are those that follow the text."""
    candidates = [[5, 6, 7], [5, 6], [5, 9, 4, 4], [8], [5, 6, 7, 3]]
    found, wanted = model.score(PROMPT, candidates), exact.score(PROMPT, candidates)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=0.05 * -min(other.logprobs))
        alone = model.score(PROMPT, [list(one.tokens)])[0]
        assert alone.logprobs == one.logprobs


class Positions:
    """Layers that add to a state what the cache holds before it: any row that is not of the path shows."""

    def __init__(self, schedule: Any) -> None:
        self.schedule, self.rows = schedule, dict[int, float]()

    def through(self, hidden: Any, position: int) -> Any:
        self.rows[position] = float(hidden[0])
        return np.array([sum((n + 1) * self.rows[n] for n in range(position + 1)), *hidden[1:]], np.float32)

    def free(self) -> None:
        """Nothing is held."""


def test_of_a_tree_each_node_sees_the_path_to_it_and_the_text_what_follows_it(model: amk.LanguageModel) -> None:
    real = model._backend._forward  # type: ignore[attr-defined]
    layers = Positions(real._layers.schedule)
    forward = SlicePass(layers, real._head, real._source)
    draw = np.random.default_rng(2)
    for _ in range(50):
        text: TextCache = forward.text()
        layers.rows.clear()
        values = draw.integers(1, 1000, 9).astype(np.float32)
        tokens = [np.full(forward.model.hidden, v, np.float32).tobytes() for v in values]
        forward.read([Part(text, tokens[:2], 0)])
        parents = [-1, *(int(draw.integers(-1, node)) for node in range(1, 7))]
        part = Part(text, tokens[2:], 7, parents=parents)
        found = forward._through(part)
        for node in range(7):
            path, at = [], node
            while at >= 0:
                path, at = [values[2 + at], *path], parents[at]
            row = [*values[:2], *path]
            assert found[node, 0] == sum((n + 1) * value for n, value in enumerate(row))
        stays = [*values[:2], *values[2 : 2 + part.appended]]
        assert [layers.rows[n] for n in range(len(stays))] == stays


@pytest.mark.turns(4)
def test_the_compiled_kernels_tell_them(directory: Path, exact: amk.LanguageModel) -> None:
    with amk.load(directory, device="emulator", max_context=16, states=True) as model:
        tokens = model.encode("ABA")
        close(model.hidden(tokens), exact.hidden(tokens), 0.02)
        rows = model.embeddings(tokens)[::-1] + np.float32(0.5)
        close(model.hidden(rows), exact.hidden(rows), 0.02)
        close(model.logits(rows), exact.logits(rows), 0.02)


@pytest.mark.parametrize("options", [{"batch": 2}, {"schedule": "no-such-file"}])
def test_what_goes_with_one_text_and_planned_schedules_alone(directory: Path, options: dict[str, Any]) -> None:
    with pytest.raises(AmkError, match="AMK016"):
        amk.load(directory, device="interpreter", states=True, **options)
