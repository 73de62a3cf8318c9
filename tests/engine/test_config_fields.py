"""Every field of every supported configuration class, changed one at a time.

A changed field gives the logits that transformers gives, or is refused by its name. Which fields there are is read from
the classes, so a field that a newer transformers adds is tried without anybody writing it down here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file

from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from tests.engine.against_transformers import (
    ABSENT,
    OF_TYPE,
    PROMPT,
    SIZES,
    TYPES,
    by_amk,
    by_transformers,
    changed,
    checkpoint,
    config_class,
    names,
)

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip

LEGACY: dict[str, list[Any]] = {
    "rope_theta": [500.0, 10000.0, 500],
    "rope_scaling": [
        {"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "default"}, {},
        {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}, LLAMA3,
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ],
    "partial_rotary_factor": [0.5, 1.0],
    "rotary_pct": [0.25, 0.5, 1.0, 0.3, 2.0],
    "rotary_emb_base": [500, 10000],
    "layer_norm_eps": [0.5],
    "use_parallel_residual": [False],
    "num_key_value_heads": [1, 4],
    "rms_norm_eps": [0.5],
    "original_max_position_embeddings": [8],
    "rope_interleaved": [True],
    "attention_bias": [True, False],
    "mlp_bias": [True, False],
    "head_dim": [8, 32],
    "sliding_window": [8, 64],
    "use_sliding_window": [True],
    "attention_chunk_size": [8, 64],
    "is_causal": [True, False, None],
    "transformers_weights": ["other.safetensors"],
    "layer_types": [["sliding_attention", "full_attention"], ["full_attention"] * 2, ["full_attention"] * 3],
    "per_layer_config": [{"0": {"num_key_value_heads": 1}}, {"1": {"intermediate_size": 48}}],
    "torch_dtype": ["bfloat16"],
    "num_labels": [3],
    "name_or_path": ["elsewhere"],
    "attn_implementation": ["sdpa"],
    "attention_multiplier": [0.5],
    "logits_scaling": [2.0],
    "final_logit_softcapping": [1.0],
    "num_experts": [4],
    "no_rope_layers": [[0, 1]],
    "qk_norm": [True],
    "temperature": [0.5],
    "auto_map": [{"AutoModelForCausalLM": "modeling.Other"}],
    "text_config": [{"num_hidden_layers": 1}],
    "tie_last_hidden_states": [True],
    "quantization_config": [{"quant_method": "bitsandbytes", "load_in_8bit": True}],
}  # fmt: skip
"""Fields that no class declares any more but files still have, or that belong to other classes."""

PLAUSIBLE: dict[str, list[Any]] = {
    "hidden_act": [
        "gelu", "relu", "swish", "silu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python", "quick_gelu",
    ],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 500.0}, {"rope_theta": 500.0}, {"rope_type": "default"}, {}, LLAMA3,
        LLAMA3 | {"factor": 2.0}, LLAMA3 | {"low_freq_factor": 0.5}, LLAMA3 | {"high_freq_factor": 2.0},
        {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"},
        LLAMA3 | {"attention_factor": 2.0}, {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
        {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        {"rope_type": "default", "rope_theta": 10000.0, "factor": 4.0},
        {"type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        {"rope_type": "default", "type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        {"full_attention": {"rope_type": "default", "rope_theta": 500.0}},
        {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "short_factor": [1.0] * 8,
         "long_factor": [2.0] * 8, "original_max_position_embeddings": 16},
    ],
    "layer_types": LEGACY["layer_types"],
    "sliding_window": [None, 8, 32, 64],
    "architectures": [None, [], ["LlamaModel"], ["MistralForCausalLM"]],
    "dtype": ["float16", "bfloat16"],
    "id2label": [{"0": "a", "1": "b", "2": "c"}],
    "label2id": [{"a": 0}],
    "problem_type": ["regression"],
    "transformers_version": ["4.0.0"],
    "head_dim": [None, 8, 32],
    "num_key_value_heads": [None, 1, 4],
    "eos_token_id": [None, 5, [2, 5]],
}  # fmt: skip


def alternatives(field: dataclasses.Field[Any], now: Any) -> list[Any]:
    """Values that a file could have there, and its absence."""
    if field.name in PLAUSIBLE:
        return [*PLAUSIBLE[field.name], ABSENT]
    value = field.default if now is None else now
    if isinstance(value, bool):
        return [not value, ABSENT]
    if isinstance(value, int):
        return [value * 2, max(1, value // 2), value + 1, ABSENT]
    if isinstance(value, float):
        return [value * 2 + 0.1, value / 2, ABSENT]
    return [7, ABSENT] if field.name.endswith("_id") else [ABSENT]


def cases(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    base = SIZES | OF_TYPE[kind]
    declared = {field.name: field for field in dataclasses.fields(config_class(kind))}
    for name, field in declared.items():
        for value in alternatives(field, base.get(name)):
            yield name, {name: value}
    for name, values in LEGACY.items():
        if name not in declared:
            for value in values:
                yield name, {name: value}


PAIRS: list[dict[str, Any]] = [
    {"rope_parameters": ABSENT, "rope_theta": 500.0, "rope_scaling": None},
    {"rope_parameters": ABSENT, "rope_scaling": LLAMA3, "rope_theta": 500.0},
    {"rope_parameters": ABSENT, "rope_scaling": {**LLAMA3, "rope_theta": 500.0}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": LLAMA3, "rope_scaling": {"rope_type": "default"}},
    {"rope_parameters": LLAMA3, "rope_scaling": LLAMA3},
    {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}, "rope_scaling": LLAMA3, "rope_theta": 500.0},
    {"rope_parameters": LLAMA3, "original_max_position_embeddings": 8},
    {"rope_parameters": {"rope_theta": 500.0}, "rope_theta": 500.0},
    {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": ABSENT},
    {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0, "layer_types": ["full_attention"] * 2},
    {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "layer_types": ABSENT},
    {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0, "layer_types": ABSENT},
    {"use_sliding_window": True, "sliding_window": ABSENT, "max_window_layers": 0, "layer_types": ABSENT},
    {"use_sliding_window": False, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2},
    {"model_type": ABSENT},
    {"hidden_activation": "gelu"},
    {"rope_parameters": ABSENT, "rotary_pct": 1.0, "rotary_emb_base": 500},
    {"rope_parameters": ABSENT, "rotary_pct": 0.5},
    {"rope_parameters": ABSENT, "rotary_pct": 0.3},
    {"rope_parameters": LLAMA3, "rotary_pct": 0.5},
]
"""Fields that act together."""


@pytest.fixture(scope="module", params=TYPES)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, checkpoint(tmp_path_factory.mktemp("models") / request.param, request.param)


ONLY_HERE = {
    "return_dict": "transformers takes its own setting for the caller's and fails",
    "layer_types": "transformers wants a window of a Mistral whose layers all have full attention",
    "model_type": "transformers does not take the type from the architecture",
}
"""Fields of files that amk runs and transformers does not, and why that is no mistake."""


def judged(directory: Path, fields: dict[str, Any]) -> str:
    """'equal', 'refused' or what is wrong."""
    positions = fields.get("max_position_embeddings", ABSENT)
    tokens = PROMPT if positions is ABSENT else PROMPT[:positions]
    mine = by_amk(directory, tokens)
    if mine.refusal is not None:
        shape = mine.refusal.code == "AMK013" and "tensor" in mine.refusal.message
        return "refused" if shape or any(names(mine.refusal, field) for field in fields) else f"unnamed: {mine.refusal}"
    theirs = by_transformers(directory, tokens)
    if theirs.logits is None:
        return "equal" if set(fields) <= set(ONLY_HERE) else f"transformers refuses: {theirs.refusal}"
    assert mine.logits is not None
    return "equal" if np.allclose(mine.logits, theirs.logits, rtol=1e-3, atol=1e-3) else "other logits"


def check(original: tuple[str, Path], directory: Path, chosen: slice) -> dict[str, int]:
    kind, source = original
    tried = [*(fields for _, fields in cases(kind)), *PAIRS][chosen]
    found = [judged(changed(source, directory / str(at), **fields), fields) for at, fields in enumerate(tried)]
    wrong = [(fields, what) for fields, what in zip(tried, found, strict=True) if what not in ("equal", "refused")]
    assert not wrong
    return {what: found.count(what) for what in ("equal", "refused")}


@pytest.mark.turns(4)
def test_every_fourth_field_of_a_type(original: tuple[str, Path], tmp_path: Path) -> None:
    """A quarter each, so that the types together try a field that they all have."""
    counts = check(original, tmp_path, slice(TYPES.index(original[0]), None, len(TYPES)))
    assert counts["equal"] > 15 and counts["refused"] > 7


@pytest.mark.long
def test_every_field_is_right_or_refused(
    original: tuple[str, Path], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    counts = check(original, tmp_path, slice(None))
    assert counts["equal"] > 60 and counts["refused"] > 30
    for name, count in counts.items():
        record_property(name, count)


def test_the_unchanged_models_are_equal(original: tuple[str, Path]) -> None:
    mine, theirs = by_amk(original[1], PROMPT), by_transformers(original[1], PROMPT)
    assert mine.logits is not None and theirs.logits is not None
    np.testing.assert_allclose(mine.logits, theirs.logits, rtol=1e-4, atol=1e-4)
    assert np.abs(theirs.logits).max() > 1, "logits near zero would hide differences"


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", TYPES)
def test_a_tied_head_is_the_embedding_and_nothing_else(kind: str, tmp_path: Path) -> None:
    tied = checkpoint(tmp_path / "tied", kind, tie_word_embeddings=True)
    mine, theirs = by_amk(tied, PROMPT), by_transformers(tied, PROMPT)
    assert mine.logits is not None and theirs.logits is not None
    np.testing.assert_allclose(mine.logits, theirs.logits, rtol=1e-4, atol=1e-4)
    stored, graph = load_file(tied / "model.safetensors"), open_checkpoint(tied).spec.graph
    head = graph.tensor("lm_head")[1]
    stored[head] = stored[graph.tensor("embed")[1]].clone()
    save_file(stored, tied / "model.safetensors")
    again = by_amk(tied, PROMPT)
    assert again.logits is not None and np.array_equal(again.logits, mine.logits)
    stored[head][40, 7] += 1
    save_file(stored, tied / "model.safetensors")
    refusal = by_amk(tied, PROMPT).refusal
    assert refusal.code == "AMK012" and names(refusal, "tie_word_embeddings")
