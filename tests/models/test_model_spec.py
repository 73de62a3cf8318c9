"""Shipped models against published parameter counts, and what a ModelSpec refuses."""

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from amk.models.graph import Attention, Norm
from amk.models.model import load_model, models_directory, shipped_models
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError

# Elements in the published safetensors of each checkpoint, tied embeddings once.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "tinyllama-1.1b": 1_100_048_384,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama3-8b": 8_030_261_248,
    "llama3.1-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mistral-7b": 7_248_023_552,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
}


def test_every_shipped_model_has_a_published_count() -> None:
    assert set(shipped_models()) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert load_model(name).params == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_tensors_sum_to_the_count_and_have_unique_names(name: str) -> None:
    model = load_model(name)
    tensors = list(model.tensors())
    assert sum(prod(shape) for _, shape in tensors) == model.params
    assert len({tensor for tensor, _ in tensors}) == len(tensors)


@pytest.mark.parametrize("name", PUBLISHED)
def test_file_is_named_after_the_model_and_names_its_source(name: str) -> None:
    values = json.loads((models_directory() / f"{name}.json").read_text())
    assert values["name"] == name
    assert "config.json" in values["source"] and "/" in values["source"]
    assert values["eos"], "a chat needs a token to stop at"


@pytest.mark.parametrize("name", PUBLISHED)
def test_json_round_trip(name: str) -> None:
    model = load_model(name)
    assert ModelSpec.model_validate_json(model.model_dump_json()) == model


def test_names_ignore_case() -> None:
    assert load_model("LLaMA3-8B") == load_model("llama3-8b")


def test_dimensions_that_are_not_the_width() -> None:
    model = load_model("qwen3-0.6b")
    assert (model.q_dim, model.kv_dim, model.group) == (2048, 1024, 2)
    assert model.layer_tensors()["wo"] == (1024, 2048)
    assert model.layer_tensors()["q_norm"] == (128,)


def test_tied_head_is_no_tensor_and_biases_are() -> None:
    model = load_model("qwen2.5-0.5b")
    assert "lm_head" not in model.global_tensors()
    assert model.layer_tensors()["bk"] == (128,)
    assert "bo" not in model.layer_tensors()


SMALL: dict[str, Any] = dict(
    name="small", source="a test", layers=2, hidden=64, ffn=96, heads=4, kv_heads=2, head_dim=16, vocab=100,
    max_context=128, rms_eps=1e-5, rope_theta=1e4,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 0}, "layers must be 1 or more"),
        ({"layers": 0, "slice": {"first": 2, "of": 2}}, "layers must be 1 or more"),
        ({"layers": 1, "slice": {"first": 2, "of": 2}}, "layers 2 to 2 of 2"),
        ({"layers": 1, "slice": {"first": 0, "of": 2, "head": True}}, "the output head comes behind layer 1"),
        ({"layers": -3}, "greater than or equal to 0"),
        ({"hidden": 1 << 62}, "less than or equal"),
        ({"layers": "2"}, "valid integer"),
        ({"layers": 2.0}, "valid integer"),
        ({"layers": True}, "valid integer"),
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"head_dim": 15}, "must be even"),
        ({"rms_eps": 0.0}, "greater than 0"),
        ({"rms_eps": float("nan")}, "finite"),
        ({"rope_theta": float("inf")}, "finite"),
        ({"rope_theta": 1.0}, "greater than 1"),
        ({"eos": [100]}, "outside the vocabulary"),
        ({"eos": [1, 1]}, "twice"),
        ({"bos": -1}, "greater than or equal to 0"),
        ({"name": "../../etc/passwd"}, "a name matches"),
        ({"name": "lаma"}, "a name matches"),
        ({"name": "a\n"}, "a name matches"),
        ({"name": "x" * 65}, "a name matches"),
        ({"moe": 8}, "Extra inputs"),
        ({"rope_scaling": {"factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0, "original_context": 8}},
         "must be greater than"),
    ],
)  # fmt: skip
def test_impossible_models_are_refused(change: dict[str, Any], words: str) -> None:
    ModelSpec.model_validate(SMALL)
    with pytest.raises(ValidationError, match=words):
        ModelSpec.model_validate({**SMALL, **change})


def test_a_model_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ModelSpec.model_validate(SMALL).layers = 3  # type: ignore[misc]


def test_own_format_is_read_from_a_path_and_errors_name_the_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(SMALL))
    assert load_model(str(path)).name == "small"
    path.write_text(json.dumps({**SMALL, "layers": -1}))
    with pytest.raises(AmkError) as caught:
        load_model(str(path))
    (found,) = caught.value.diagnostics
    assert (found.code, found.where and found.where.path) == ("AMK005", "/layers")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("llama3-9b", "AMK010"),
        ("", "AMK001"),  # the empty path is the current directory, which holds no model here
        ("no/such/dir", "AMK001"),
        ("nothing.gguf", "AMK001"),
        ("x" * 100_000, "AMK010"),
        ("a\0b", "AMK010"),
    ],
)
def test_unknown_models(name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AmkError) as caught:
        load_model(name)
    assert caught.value.diagnostics[0].code == code
    assert caught.value.exit_code == 2


def test_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(AmkError) as caught:
        load_model("LLAMA3-8")
    assert "llama3-8b" in str(caught.value.diagnostics[0].help)


def test_a_copy_with_other_fields_has_its_own_graph() -> None:
    model = load_model("llama3.2-1b")
    assert not model.graph.products["qkv"].biases
    biased = model.model_copy(update={"qkv_bias": True})
    assert [tensor.name for tensor in biased.graph.products["qkv"].biases] == ["bq", "bk", "bv"]
    assert biased.params == model.params + model.layers * (model.q_dim + 2 * model.kv_dim)


def test_a_family_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValidationError, match="no family of models is called mamba"):
        ModelSpec.model_validate(SMALL | {"family": "mamba"})


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": True}, {"activation": "gelu"}, {"family": "gpt_neox"},
        {"family": "gpt_neox", "activation": "gelu", "qk_norm": True},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_that_the_family_does_not_have_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="models of the family"):
        ModelSpec.model_validate(SMALL | changes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_graph_makes_every_value_before_it_is_read_and_holds_every_matrix_once(name: str) -> None:
    graph, values, states = load_model(name).graph, set[str](), 0
    for node in graph.nodes:
        if isinstance(node, Attention):
            assert "rows" in values
            values.add("attn")
            continue
        assert node.reads.reads <= states if isinstance(node.reads, Norm) else node.reads in values
        values.add("act" if node.then == "activation" else node.then)
        states += node.then == "residual"
    rows = [tensor.name for product in graph.products.values() for tensor in product.rows]
    matrices = [t.name for t in (*graph.layer_tensors.values(), *graph.top_tensors.values()) if len(t.shape) == 2]
    assert sorted(rows) == sorted(set(matrices) - {"embed"})
