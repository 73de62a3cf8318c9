"""Hugging Face configurations: both spellings give the shipped models back; other mathematics is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk.models.model import load_model, model_from_hf_config, shipped_models
from amk.models.model_hf import ARCHITECTURES
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError


def architecture(model: ModelSpec) -> str:
    if model.family != "llama":
        return model.family
    return "qwen2" if model.qkv_bias else "qwen3" if model.qk_norm else "mistral" if "mis" in model.name else "llama"


def hf_config(model: ModelSpec, spelling: str) -> dict[str, Any]:
    """The config.json that transformers 4 (`old`) or 5 (`new`) would save for `model`."""
    kind = architecture(model)
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_context,
        "rms_norm_eps": model.rms_eps,
        "tie_word_embeddings": model.tied_embeddings,
        "bos_token_id": model.bos,
        "eos_token_id": list(model.eos) if len(model.eos) > 1 else model.eos[0],
        "attention_dropout": 0.0,
        "use_cache": True,
        "sliding_window": None,
    }
    if kind == "gpt_neox":
        return neox_config(model, config, spelling)
    scaling = None
    if model.rope_scaling:
        scaling = model.rope_scaling.model_dump()
        scaling["original_max_position_embeddings"] = scaling.pop("original_context")
        scaling["rope_type"] = "llama3"
    if spelling == "old":
        return config | {"torch_dtype": "bfloat16", "rope_theta": model.rope_theta, "rope_scaling": scaling}
    parameters = {"rope_theta": model.rope_theta, **(scaling or {"rope_type": "default"})}
    return config | {"dtype": "bfloat16", "rope_parameters": parameters}


def neox_config(model: ModelSpec, config: dict[str, Any], spelling: str) -> dict[str, Any]:
    """The same for a class that has other names and more fields."""
    for absent in ("num_key_value_heads", "head_dim", "rms_norm_eps", "sliding_window"):
        del config[absent]
    config |= {
        "hidden_act": "gelu", "layer_norm_eps": model.rms_eps, "use_parallel_residual": True, "attention_bias": True,
    }  # fmt: skip
    part = (model.rotary_dim or model.head_dim) / model.head_dim
    if spelling == "old":
        return config | {"torch_dtype": "float16", "rotary_pct": part, "rotary_emb_base": int(model.rope_theta)}
    parameters = {"rope_theta": model.rope_theta, "partial_rotary_factor": part, "rope_type": "default"}
    return config | {"dtype": "float16", "rope_parameters": parameters}


@pytest.mark.parametrize("spelling", ["old", "new"])
@pytest.mark.parametrize("name", shipped_models())
def test_both_spellings_give_the_same_model(name: str, spelling: str) -> None:
    model = load_model(name)
    assert model_from_hf_config(hf_config(model, spelling), name, model.source) == model


@pytest.mark.parametrize("name", ["smollm2-135m", "tinyllama-1.1b", "qwen2.5-7b", "pythia-410m"])
def test_absent_fields_take_the_architecture_defaults(name: str) -> None:
    model = load_model(name)
    config = hf_config(model, "old")
    for key in (
        "head_dim", "hidden_act", "architectures", "sliding_window", "rope_scaling", "rotary_pct", "rotary_emb_base",
        "layer_norm_eps", "use_parallel_residual", "attention_bias",
    ):  # fmt: skip
        config.pop(key, None)
    if not model.tied_embeddings:
        del config["tie_word_embeddings"]
    assert model_from_hf_config(config, name, model.source) == model


def llama(**changes: Any) -> dict[str, Any]:
    return {k: v for k, v in (hf_config(load_model("llama3.2-1b"), "old") | changes).items() if v != "absent"}


def mistral(**changes: Any) -> dict[str, Any]:
    return {k: v for k, v in (hf_config(load_model("mistral-7b"), "old") | changes).items() if v != "absent"}


def qwen(**changes: Any) -> dict[str, Any]:
    return hf_config(load_model("qwen2.5-7b"), "old") | changes


def neox(**changes: Any) -> dict[str, Any]:
    return hf_config(load_model("pythia-410m"), "old") | changes


def refusal(config: object) -> tuple[str, str | None, str]:
    with pytest.raises(AmkError) as caught:
        model_from_hf_config(config, "x", "test", "config.json")
    found = caught.value.diagnostics[0]
    assert found.where is not None and found.where.file == "config.json"
    return found.code, found.where.path, found.message


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (llama(model_type="mixtral"), "/model_type"),
        (llama(model_type="qwen3_moe"), "/model_type"),
        (llama(architectures=["LlamaForSequenceClassification"]), "/architectures"),
        (llama(hidden_act="gelu"), "/hidden_act"),
        (llama(attention_bias=True), "/attention_bias"),
        (llama(mlp_bias=True), "/mlp_bias"),
        (llama(partial_rotary_factor=0.5), "/partial_rotary_factor"),
        (llama(rope_interleaved=True), "/rope_interleaved"),
        (llama(num_local_experts=8), "/num_local_experts"),
        (llama(quantization_config={"quant_method": "gptq"}), "/quantization_config"),
        (llama(final_logit_softcapping=30.0), "/final_logit_softcapping"),
        (llama(rope_scaling={"type": "linear", "factor": 2.0}), "/rope_scaling"),
        (llama(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "/rope_scaling"),
        (llama(rope_scaling={"rope_type": "default", "partial_rotary_factor": 0.25}), "/rope_scaling"),
        (llama(rope_scaling=None, rope_parameters={"full_attention": {"rope_type": "default"}}), "/rope_parameters"),
        (llama(rope_parameters={"rope_type": "default"}), "/rope_scaling"),
        (mistral(sliding_window=4096), "/sliding_window"),
        (mistral(sliding_window="absent"), "/sliding_window"),
        (qwen(use_sliding_window=True, sliding_window=4096, max_window_layers=21), "/sliding_window"),
        (qwen(layer_types=["full_attention", "sliding_attention"]), "/layer_types"),
        (neox(hidden_act="silu"), "/hidden_act"),
        (neox(head_dim=128), "/head_dim"),
        (neox(rotary_pct=0.02), "/rotary_pct"),
        (neox(rotary_pct=1.5), "/rotary_pct"),
        (neox(rope_theta=500.0), "/rope_theta"),
        (neox(partial_rotary_factor=0.5), "/partial_rotary_factor"),
        (neox(rope_scaling={"rope_type": "linear", "factor": 2.0}), "/rope_scaling"),
    ],
)
def test_other_mathematics_is_refused(config: dict[str, Any], path: str) -> None:
    code, where, _ = refusal(config)
    assert (code, where) == ("AMK012", path)


@pytest.mark.parametrize(
    "config",
    [
        mistral(sliding_window=32768),
        qwen(use_sliding_window=False, sliding_window=131072, max_window_layers=21),
        qwen(use_sliding_window=True, sliding_window=4096, max_window_layers=28),
        qwen(layer_types=["full_attention"] * 28),
        llama(quantization_config=None, pretraining_tp=4, mlp_bias=False, attention_bias=False),
    ],
)
def test_fields_without_effect_are_accepted(config: dict[str, Any]) -> None:
    assert model_from_hf_config(config, "x", "test").layers > 0


@pytest.mark.parametrize(
    ("config", "path", "words"),
    [
        ([], "/", "object"),
        (llama(hidden_size="2048"), "/hidden_size", "integer"),
        (llama(hidden_size=None), "/hidden_size", "missing"),
        (llama(num_hidden_layers=-1), "/num_hidden_layers", "greater than or equal"),
        (llama(num_hidden_layers=True), "/num_hidden_layers", "integer"),
        (llama(vocab_size=1 << 60), "/vocab_size", "less than or equal"),
        (llama(eos_token_id="two"), "/eos_token_id", "integer"),
        (llama(eos_token_id=["a", "b"]), "/eos_token_id/0", "integer"),
        (llama(eos_token_id=list(range(1000))), "/eos_token_id", "64"),
        (llama(head_dim="absent", num_attention_heads=7), "/num_attention_heads", "multiple"),
        (llama(head_dim="absent", num_attention_heads=0), "/num_attention_heads", "multiple"),
        (llama(rope_scaling=None, rope_parameters={"rope_theta": 5.0}), "/rope_theta", "disagree"),
        (llama(rope_scaling={"rope_type": "llama3"}), "/factor", "missing"),
        (mistral(num_key_value_heads="absent"), "/num_key_value_heads", "missing"),
    ],
)
def test_malformed_fields_are_named(config: object, path: str, words: str) -> None:
    code, where, message = refusal(config)
    assert (code, where) == ("AMK005", path)
    assert words in message


def test_directory_with_generation_config(tmp_path: Path) -> None:
    folder = tmp_path / "My Llama (ä)"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama(eos_token_id=128001)))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [128001, 128009]}))
    model = load_model(str(folder))
    assert model.eos == (128001, 128009)
    assert model.name == "My-Llama"
    assert load_model(str(folder / "config.json")) == model


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.turns(12)
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(llama(layer_types=[], use_sliding_window=False, max_window_layers=0))), JSON)
def test_any_value_in_any_field_gives_a_model_or_a_diagnostic(key: str, value: object) -> None:
    for config in (llama(**{key: value}), qwen(**{key: value})):
        try:
            assert isinstance(model_from_hf_config(config, "x", "test"), ModelSpec)
        except AmkError as error:
            assert error.diagnostics[0].code in ("AMK005", "AMK012")
