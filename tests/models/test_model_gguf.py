"""GGUF metadata: files written by the gguf package are read back; damaged ones get one diagnostic, quickly."""

import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amk.models.gguf_header import GgufArray, read_gguf_header
from amk.models.model import load_model, model_from_gguf_fields
from amk.models.model_spec import ModelSpec, RopeScaling
from amk.models.rope import llama3_divisors, rope_frequencies
from amk.report.diagnostic import AmkError

SCALING = RopeScaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)
SMALL = ModelSpec(
    name="tiny", source="GGUF metadata of tiny.gguf", layers=1, hidden=32, ffn=64, heads=4, kv_heads=2, head_dim=8,
    vocab=100, max_context=64, rms_eps=1e-5, rope_theta=5e5, tied_embeddings=True, bos=1, eos=(2, 3),
)  # fmt: skip


def write(path: Path, model: ModelSpec = SMALL, arch: str = "llama", **extra: Any) -> Path:
    """A GGUF file of `model` with its embedding (zeros) and the tensors that tell variants apart."""
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_name(model.name)
    writer.add_block_count(model.layers)
    writer.add_context_length(model.max_context)
    writer.add_embedding_length(model.hidden)
    writer.add_feed_forward_length(model.ffn)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_layer_norm_rms_eps(model.rms_eps)
    writer.add_rope_freq_base(model.rope_theta)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_token_list([f"token{i}" for i in range(model.vocab)])
    writer.add_token_scores([0.0] * model.vocab)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    for key, value in extra.pop("fields", {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((model.vocab, model.hidden), np.float32))
    for name, value in extra.pop("tensors", {}).items():
        writer.add_tensor(name, np.asarray(value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def changed(**update: Any) -> ModelSpec:
    return ModelSpec.model_validate({**SMALL.model_dump(), **update})


def test_round_trip_by_file_and_by_directory(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf")
    assert load_model(str(path)) == SMALL
    assert load_model(str(tmp_path)) == SMALL


def test_content_decides_not_the_file_name(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf").rename(tmp_path / "weights.bin")
    assert load_model(str(path)).layers == 1


def test_variants_are_told_apart_by_their_tensors(tmp_path: Path) -> None:
    tensors = {"output.weight": np.zeros((100, 32)), "blk.0.attn_q.bias": np.zeros(32)}
    assert load_model(str(write(tmp_path / "tiny.gguf", arch="qwen2", tensors=tensors))) == changed(
        tied_embeddings=False, qkv_bias=True
    )
    tensors = {"blk.0.attn_q_norm.weight": np.zeros(16)}
    fields = {"qwen3.attention.key_length": 16, "qwen3.attention.value_length": 16}
    path = write(tmp_path / "tiny.gguf", changed(head_dim=16), "qwen3", tensors=tensors, fields=fields)
    assert load_model(str(path)) == changed(head_dim=16, qk_norm=True)


def test_llama3_scaling_is_recovered_from_its_divisors(tmp_path: Path) -> None:
    divisors = llama3_divisors(rope_frequencies(SMALL), SCALING)
    path = write(tmp_path / "tiny.gguf", tensors={"rope_freqs.weight": divisors})
    assert load_model(str(path)) == changed(rope_scaling=SCALING.model_dump())


@pytest.mark.parametrize(
    "change",
    [
        {"fields": {"llama.expert_count": 8}},
        {"fields": {"llama.rope.scaling.type": "yarn"}},
        {"fields": {"llama.attention.sliding_window": 16}},
        {"fields": {"llama.attention.value_length": 4}},
        {"tensors": {"rope_freqs.weight": [1.0, 1.0, 2.0, 32.0]}},
        {"tensors": {"rope_freqs.weight": [1.0] * 3}},
        {"tensors": {"blk.0.attn_output.bias": [0.0] * 32}},
        {"arch": "gemma"},
    ],
    ids=str,
)
def test_other_mathematics_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(AmkError, match="AMK012"):
        load_model(str(write(tmp_path / "tiny.gguf", **change)))


@pytest.mark.parametrize("divisors", [[float("nan")] * 4, [float("inf")] * 4, [-1.0] * 4, [0.0] * 4])
def test_hostile_divisors_are_refused(tmp_path: Path, divisors: list[float]) -> None:
    with pytest.raises(AmkError) as caught:
        load_model(str(write(tmp_path / "tiny.gguf", tensors={"rope_freqs.weight": divisors})))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "remove", ["general.architecture", "llama.block_count", "llama.attention.head_count", "llama.embedding_length"]
)
def test_missing_fields_are_named(tmp_path: Path, remove: str) -> None:
    header = read_gguf_header(write(tmp_path / "tiny.gguf"))
    fields = {key: value for key, value in header.fields.items() if key != remove}
    with pytest.raises(AmkError) as caught:
        model_from_gguf_fields(fields, {"token_embd.weight": (100, 32)})
    assert caught.value.diagnostics[0].code == "AMK005"
    assert remove in caught.value.diagnostics[0].message


def test_wrong_types_are_refused(tmp_path: Path) -> None:
    header = read_gguf_header(write(tmp_path / "tiny.gguf"))
    for key in header.fields:
        for value in ("x", True, -1, 0, 1.5, 1 << 60, GgufArray(3, None)):
            try:
                model_from_gguf_fields({**header.fields, key: value}, {"token_embd.weight": (100, 32)})
            except AmkError as error:
                assert error.diagnostics[0].code in ("AMK005", "AMK012"), (key, value)


def test_header_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf")
    reader, header = gguf.GGUFReader(str(path)), read_gguf_header(path)
    assert {t.name: (tuple(int(n) for n in t.shape[::-1]), int(t.data_offset)) for t in reader.tensors} == {
        name: (tensor.shape, tensor.offset) for name, tensor in header.tensors.items()
    }
    assert header.fields["tokenizer.ggml.tokens"] == GgufArray(100, None)
    assert set(header.fields) == {key for key in reader.fields if not key.startswith("GGUF.")}


def refused_in_time(path: Path) -> bool:
    """True if refused, False if a model was read; anything else, or more than a second at work, fails the test."""
    start = time.process_time()
    try:
        assert isinstance(load_model(str(path)), ModelSpec)
        return False
    except AmkError as error:
        assert error.exit_code == 2
        return True
    finally:
        assert time.process_time() - start < 1


def test_every_truncation_of_the_header_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf")
    content = path.read_bytes()
    end = read_gguf_header(path).tensors["token_embd.weight"].offset - 32
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 400), *range(400, end, 41)]:
        cut.write_bytes(content[:size])
        assert refused_in_time(cut), size


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_never_escape_as_another_exception(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "tiny.gguf"
    content = bytearray((path if path.exists() else write(path)).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    refused_in_time(damaged)


def header_of(*parts: bytes, fields: int = 1, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + b"".join(parts)


def string(text: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if size is None else size) + text


ARRAY = string(b"a") + struct.pack("<I", 9)


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF",
        header_of(fields=1 << 60),
        header_of(fields=0, tensors=1 << 60),
        header_of(string(b"a", size=1 << 60)),
        header_of(ARRAY, struct.pack("<IQ", 4, 1 << 60)),
        header_of(ARRAY, struct.pack("<IQ", 8, 1 << 60)),
        header_of(ARRAY, struct.pack("<IQ", 0, (1 << 64) - 1)),
        header_of(ARRAY, struct.pack("<IQ", 9, 1)),
        header_of(string(b"a"), struct.pack("<I", 99)),
        header_of(string(b"\xff\xfe"), struct.pack("<II", 4, 1)),
        header_of(*[string(b"a") + struct.pack("<II", 4, 1)] * 2, fields=2),
        header_of(string(b"general.alignment") + struct.pack("<II", 4, 0)),
        header_of(string(b"t") + struct.pack("<I", 1 << 31), fields=0, tensors=1),
    ],
    ids=range(13),
)
def test_hostile_headers(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    assert refused_in_time(path)


def test_huge_tensor_is_not_read(tmp_path: Path) -> None:
    tensor = string(b"rope_freqs.weight") + struct.pack("<IQQQIQ", 3, 1 << 40, 1 << 40, 1 << 40, 0, 0)
    path = tmp_path / "hostile.gguf"
    path.write_bytes(header_of(tensor, fields=0, tensors=1) + bytes(64))
    assert refused_in_time(path)


def test_two_files_in_a_directory_are_ambiguous(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf")
    write(tmp_path / "b.gguf")
    with pytest.raises(AmkError, match="AMK001") as caught:
        load_model(str(tmp_path))
    assert caught.value.diagnostics[0].help == "name the file itself"
