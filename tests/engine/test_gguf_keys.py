"""Every metadata key of the format in a small file: refused by its name, or without effect on the model.

Which keys there are is read from the `gguf` package, so a key that a newer version adds is tried as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf.constants import Keys

from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.models.gguf_header import read_gguf_header
from amk.models.model_gguf import ARCHITECTURES, model_from_gguf_fields
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError
from tests.engine import tiny_model

SECTIONS = ("General", "LLM", "Attention", "Rope", "Split", "SSM", "WKV", "Adapter")
ADDS = {str: "add_string", bool: "add_bool", int: "add_uint32", float: "add_float32"}

CHANGES: dict[str, dict[Any, dict[str, Any]]] = {
    "rope.freq_base": {500.0: {"rope_theta": 500.0}},
    "attention.layer_norm_rms_epsilon": {1e-4: {"rms_eps": 1e-4}},
    "context_length": {64: {"max_context": 64}},
    "vocab_size": {},
}
"""Values that are read, and what they make of the description."""

OLD = ("rope.scale_linear",)
"""Keys of earlier versions that files still have."""

NEUTRAL = {
    "attention.causal": (True,), "rope.scale_linear": (1,), "rope.scaling.factor": (1,), "logit_scale": (1,),
    "rope.scaling.attn_factor": (1,), "residual_scale": (1,), "embedding_scale": (1,),
    "split.count": (True,),
}  # fmt: skip
"""Values that say what is so anyway."""

HARMLESS = ("general.", "tokenizer.", "split.no", "split.tensors.count")
"""What names, describes or numbers a file."""

SHAPE_KEYS = {
    "general.architecture", "general.name", "general.alignment", "{arch}.block_count", "{arch}.embedding_length",
    "{arch}.feed_forward_length", "{arch}.attention.head_count", "{arch}.attention.head_count_kv",
    "{arch}.attention.key_length", "{arch}.attention.value_length",
}  # fmt: skip
"""Keys that decide the tensors' shapes: the tests of checkpoints change these."""


def keys() -> Iterator[str]:
    for section in SECTIONS:
        for name, value in vars(getattr(Keys, section)).items():
            if isinstance(value, str) and name[0] != "_" and value not in SHAPE_KEYS and "{id}" not in value:
                yield value
    yield from (f"{{arch}}.{key}" for key in OLD)


def described(path: Path, arch: str, key: str, value: Any) -> ModelSpec:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        getattr(writer, ADDS[type(value)])(key, value)

    return open_checkpoint(
        tiny_model.write_gguf(path, tiny_model.weights(arch, tied=True), arch=arch, extra=extra)
    ).spec


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_key_is_without_effect_or_refused_by_name(arch: str, tmp_path: Path) -> None:
    path = tiny_model.write_gguf(tmp_path / "m.gguf", tiny_model.weights(arch, tied=True), arch=arch)
    header = read_gguf_header(path)
    shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
    plain = model_from_gguf_fields(header.fields, shapes)
    outcomes = []
    for template in dict.fromkeys(keys()):
        key = template.format(arch=arch, dense="dense")
        part = key.removeprefix(f"{arch}.")
        values = list(CHANGES[part]) if part in CHANGES else [3, 0.5, "linear", True]
        for value in values:
            try:
                found = model_from_gguf_fields({**header.fields, key: value}, shapes)
            except AmkError as error:
                text = f"{error.diagnostics[0].message} {error.diagnostics[0].facts}"
                assert key in text, (key, value, text)
                outcomes.append("refused")
                continue
            expected = plain.model_copy(update=CHANGES.get(part, {}).get(value, {}))
            assert found == expected, (key, value)
            assert (
                part in CHANGES
                or key.startswith(HARMLESS)
                or part in ("tensor_data_layout", "rope.scaling.finetuned")
                or (part in NEUTRAL and value in NEUTRAL[part])
            ), f"{key} = {value!r} is accepted"
            outcomes.append("equal")
    assert outcomes.count("refused") > 200


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.factor", 8.0),
        ("llama.rope.scale_linear", 4.0),
        ("llama.rope.scaling.type", "linear"),
        ("llama.rope.scaling.type", "yarn"),
        ("llama.attention.causal", False),
        ("llama.attention.sliding_window", 16),
        ("llama.rope.dimension_count", 32),
        ("split.count", 2),
        ("general.type", "adapter"),
        ("llama.a_key_of_tomorrow", 1),
    ],
)
def test_keys_that_would_change_the_model_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(AmkError, match="AMK012") as caught:
        described(tmp_path / "m.gguf", "llama", key, value)
    assert key in caught.value.diagnostics[0].message


def test_a_factor_of_no_scaling_is_none(tmp_path: Path) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(8.0)

    path = tiny_model.write_gguf(tmp_path / "m.gguf", tiny_model.weights(), extra=extra)
    assert open_checkpoint(path).spec.rope_scaling is None


def test_a_tensor_that_no_such_model_has_is_refused(tmp_path: Path) -> None:
    arrays = tiny_model.weights("qwen2")
    path = tiny_model.write_gguf(tmp_path / "m.gguf", {k: v for k, v in arrays.items() if k != "l0.bq"}, arch="llama")
    with pytest.raises(AmkError, match=r"blk\.0\.attn_k\.bias"):
        open_checkpoint(path)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_architecture_has_all_its_tensors(arch: str, tmp_path: Path) -> None:
    """Biases and norms of queries and keys are the architecture's, not the file's: without them it is another model."""
    arrays = tiny_model.weights(arch)
    parts = sorted({name.partition(".")[2] for name in arrays} - {""})
    for part in parts:
        left = {name: values for name, values in arrays.items() if name.partition(".")[2] != part}
        path = tiny_model.write_gguf(tmp_path / f"{part}.gguf", left, arch=arch)
        with pytest.raises(AmkError) as caught:
            open_checkpoint(path)
        assert caught.value.diagnostics[0].code == "AMK013" and "missing" in caught.value.diagnostics[0].message, part
    assert len(parts) == {"llama": 9, "qwen2": 12, "qwen3": 11}[arch]
