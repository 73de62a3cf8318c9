"""Options and arguments of other kinds are refused by name, and temperature 0 is greedy whatever the filters are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amk
from amk.engine.backends.choice import choose
from amk.engine.generation.completion import Options
from amk.engine.load import EMULATED_WARPS, plan_for_cpu
from amk.models.model import load_model, shipped_models
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY, Sampling
from tests.engine import tiny_chat


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with amk.load(tiny_chat.write(tmp_path_factory.mktemp("tiny") / "model", layers=1), device="cpu") as opened:
        yield opened


def test_a_mask_of_numbers_is_refused(model: Any) -> None:
    """Others add minus infinity to logits."""
    added = np.where(np.arange(model.spec.vocab) == 7, 0.0, -np.inf)
    with pytest.raises(AmkError, match="AMK015: the mask has numbers of type float64"):
        model.generate("A", max_tokens=1, mask=lambda _: added)
    with pytest.raises(AmkError, match="AMK015: the mask has numbers"):
        model.generate("A", max_tokens=1, mask=lambda _: added, choices=["A", "B"])
    for kind in (bool, int, np.uint8):
        found = model.generate("A", max_tokens=1, mask=lambda _, kind=kind: (added == 0).astype(kind), ignore_eos=True)
        assert found.tokens == (7,)


def test_embeddings_must_be_finite_in_float32(model: Any) -> None:
    with pytest.raises(AmkError, match="AMK015: the embeddings of the prompt are not all finite"):
        model.logits(np.full((2, model.spec.hidden), 1e300))


def test_arguments_of_other_kinds_are_refused(model: Any) -> None:
    with pytest.raises(AmkError, match=r"AMK015: window is 2\.5"):
        model.perplexity("ABC", window=2.5)
    with pytest.raises(AmkError, match="AMK015: stride is True"):
        model.perplexity("ABC", stride=True)
    with pytest.raises(AmkError, match="AMK015: continuations is 5"):
        model.score("A", 5)
    with pytest.raises(AmkError, match="AMK014"):
        model.embeddings("ABC")
    with pytest.raises(AmkError, match="AMK015: prompts is one text"):
        model.generate_all("ABC")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("choices", [1]), ("choices", None), ("choices", (c for c in "ab")), ("choices", "ab"), ("mask", 5),
        ("regex", 5), ("grammar", 5), ("json_schema", 5), ("ignore_eos", "x"), ("temperature", "0"), ("top_k", 1.5),
    ],
)  # fmt: skip
def test_options_of_other_kinds_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(AmkError, match=f"AMK015: {option} "):
        Options(**{option: value})


def test_temperature_zero_takes_the_most_probable_token_whatever_the_filters_are() -> None:
    assert Options(temperature=0, top_k=5, top_p=0.5, seed=3).sampling.mode == "greedy"
    assert Options(top_k=5).sampling == Sampling(1.0, 5)
    assert Options().sampling == GREEDY


def test_no_number_is_no_choice() -> None:
    logits = np.array([1.0, np.nan, 3.0], np.float32)
    for sampling in (GREEDY, Sampling(1.0)):
        with pytest.raises(AmkError, match="AMK013"):
            choose(logits, sampling, 0)


@pytest.mark.parametrize("name", shipped_models())
@pytest.mark.parametrize("warps", [2, EMULATED_WARPS])
def test_every_model_has_a_plan_for_the_interpreter_and_the_emulator(name: str, warps: int) -> None:
    spec = load_model(name)
    schedule = plan_for_cpu(spec, 64, warps=warps)
    assert schedule.launch.workers >= spec.kv_heads and schedule.launch.warps >= warps
