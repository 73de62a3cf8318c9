"""Hugging Face directories: one file, shards, every dtype, and what must be refused."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from amk.engine.checkpoints.checkpoint import unread
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from tests.engine import tiny_model

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_single_file_of_every_dtype(dtype: str, tmp_path: Path) -> None:
    arrays = tiny_model.weights()
    checkpoint = open_checkpoint(tiny_model.write_single(tmp_path / "tiny", arrays, dtype))
    assert set(checkpoint.shapes) == set(arrays)
    for name, array in arrays.items():
        found = checkpoint.tensor(name)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, array, err_msg=name)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_shards_and_the_tensors_of_each_family(model_type: str, tmp_path: Path) -> None:
    arrays = tiny_model.weights(model_type, tied=True)
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    changes = {"model_type": model_type, "architectures": [names[model_type]], "tie_word_embeddings": True}
    checkpoint = open_checkpoint(tiny_model.write_sharded(tmp_path / "tiny", arrays, **changes))
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.tensor(name, slice(1, 7)), array[1:7], err_msg=name)
    np.testing.assert_array_equal(checkpoint.tensor("lm_head"), arrays["embed"])
    assert checkpoint.shape("lm_head") == arrays["embed"].shape


def test_returned_rows_are_the_callers_own(tmp_path: Path) -> None:
    arrays = tiny_model.weights()
    checkpoint = open_checkpoint(tiny_model.write_single(tmp_path / "tiny", arrays))
    checkpoint.tensor("l0.wq", slice(0, 2))[...] = 7.0
    np.testing.assert_array_equal(checkpoint.tensor("l0.wq", slice(0, 2)), arrays["l0.wq"][:2])


def refused(path: Path) -> Diagnostic:
    with pytest.raises(AmkError) as caught:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.shapes:
            checkpoint.tensor(name)
    assert caught.value.exit_code is Exit.INPUT
    return caught.value.diagnostics[0]


def test_truncation_anywhere_is_refused(tmp_path: Path) -> None:
    path = tiny_model.write_single(tmp_path / "tiny", tiny_model.weights())
    file = path / "model.safetensors"
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for size in (0, 1, 7, 8, 9, start // 2, start - 1, start, start + 1, len(content) - 1):
        file.write_bytes(content[:size])
        assert refused(path).code == "AMK013"


def hostile(path: Path, entry: dict[str, Any], header_bytes: int | None = None) -> Path:
    """A directory whose safetensors header declares one tensor as `entry` over 64 bytes of data."""
    tiny_model.write_config(path)
    text = json.dumps({"model.embed_tokens.weight": entry}).encode()
    size = (len(text) if header_bytes is None else header_bytes).to_bytes(8, "little")
    (path / "model.safetensors").write_bytes(size + text + bytes(64))
    return path


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [1 << 20, 1 << 18], "data_offsets": [0, 1 << 40]},
        {"dtype": "F32", "shape": [1 << 20, 1 << 18], "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": [-1, 16], "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": [4, 4], "data_offsets": [64, 0]},
        {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]},
    ],
)
def test_hostile_header_is_refused_before_anything_is_allocated(entry: dict[str, Any], tmp_path: Path) -> None:
    assert refused(hostile(tmp_path / "tiny", entry)).code == "AMK013"


@pytest.mark.parametrize("size", [1 << 40, (1 << 64) - 1, 0])
def test_absurd_header_length_is_refused(size: int, tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
    assert refused(hostile(tmp_path / "tiny", entry, size)).code == "AMK013"


@pytest.mark.parametrize(
    "shard",
    [
        "../other/model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "..safetensors",
        "model.safetensors\n",
        "model\0.safetensors",
        "model.bin",
        "",
        ".safetensors",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_shard_names_stay_in_the_directory(shard: Any, tmp_path: Path) -> None:
    outside = tmp_path / "other"
    tiny_model.write_single(outside, tiny_model.weights())
    path = tiny_model.write_sharded(tmp_path / "tiny", tiny_model.weights())
    index = json.loads((path / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = shard
    (path / INDEX).write_text(json.dumps(index))
    found = refused(path)
    assert found.code == "AMK013"
    assert "not the name of a shard" in found.message


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": ["a"]}', "[" * 100, "nan"])
def test_malformed_index_is_refused(text: str, tmp_path: Path) -> None:
    path = tiny_model.write_sharded(tmp_path / "tiny", tiny_model.weights())
    (path / INDEX).write_text(text)
    assert refused(path).code in ("AMK001", "AMK003", "AMK013")


def test_missing_shard_and_missing_tensor_are_named(tmp_path: Path) -> None:
    path = tiny_model.write_sharded(tmp_path / "tiny", tiny_model.weights())
    (path / "model-00002-of-00003.safetensors").unlink()
    assert "is missing" in refused(path).message
    arrays = tiny_model.weights()
    del arrays["l1.w_gate"]
    path = tiny_model.write_single(tmp_path / "less", arrays)
    assert refused(path).message == "tensor 'model.layers.1.mlp.gate_proj.weight' is missing"


def test_fifo_in_place_of_a_shard_does_not_block(tmp_path: Path) -> None:
    path = tiny_model.write_sharded(tmp_path / "tiny", tiny_model.weights())
    shard = path / "model-00001-of-00003.safetensors"
    shard.unlink()
    os.mkfifo(shard)
    assert refused(path).code == "AMK013"


def test_shape_of_the_file_must_be_that_of_the_configuration(tmp_path: Path) -> None:
    path = tiny_model.write_single(tmp_path / "tiny", tiny_model.weights(), intermediate_size=1024)
    assert "has shape [512, 256], expected [1024, 256]" in refused(path).message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_value_that_is_not_finite_is_named(value: float, dtype: str, tmp_path: Path) -> None:
    arrays = tiny_model.weights()
    arrays["l1.attn_norm"][5] = value
    found = refused(tiny_model.write_single(tmp_path / "tiny", arrays, dtype))
    assert (found.code, found.message) == ("AMK013", f"l1.attn_norm[5] is {value}")


def test_integer_weights_are_unsupported(tmp_path: Path) -> None:
    import safetensors.numpy

    path = tmp_path / "tiny"
    tiny_model.write_config(path)
    arrays = {tiny_model.hf_name(name): array for name, array in tiny_model.weights().items()}
    arrays["model.norm.weight"] = arrays["model.norm.weight"].astype(np.int8)
    safetensors.numpy.save_file(arrays, path / "model.safetensors")
    found = refused(path)
    assert (found.code, found.message) == ("AMK012", "tensor 'model.norm.weight' is stored as I8")


def test_pickled_weights_are_named_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny"
    tiny_model.write_config(path)
    (path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    found = refused(path)
    assert any("never read" in fact.text for fact in found.facts)


def test_tensors_that_the_configuration_hides_are_named(tmp_path: Path) -> None:
    """Layers behind the last one, biases and adapters are a part of some model; what follows from a configuration is
    none of any."""
    whole = tiny_model.write_single(tmp_path / "whole", tiny_model.weights())
    assert open_checkpoint(whole).unread == () == unread(open_checkpoint(whole))
    file = whole / "model.safetensors"
    own = safetensors.numpy.load_file(file)
    derived = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    safetensors.numpy.save_file(own | derived, file)
    assert open_checkpoint(whole).unread == ()
    bias = {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)}
    safetensors.numpy.save_file(own | bias, file)
    (diagnostic,) = unread(open_checkpoint(whole))
    assert diagnostic.code == "AMK013" and diagnostic.severity == "warning"
    assert next(iter(bias)) in str(diagnostic.facts)
    fewer = tiny_model.write_single(tmp_path / "fewer", tiny_model.weights(), num_hidden_layers=tiny_model.LAYERS - 1)
    names = open_checkpoint(fewer).unread
    assert names and all(name.startswith(f"model.layers.{tiny_model.LAYERS - 1}.") for name in names)
    (diagnostic,) = unread(open_checkpoint(fewer))
    assert f"and {len(names) - 4} more" in str(diagnostic.facts)


def test_an_adapter_beside_the_weights_is_refused(tmp_path: Path) -> None:
    """transformers would add it to the weights, where peft is installed."""
    path = tiny_model.write_single(tmp_path / "tiny", tiny_model.weights())
    (path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(AmkError, match="AMK012") as caught:
        open_checkpoint(path)
    assert "adapter" in caught.value.diagnostics[0].message
