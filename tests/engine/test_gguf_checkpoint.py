"""GGUF checkpoints: every storage format against a literal decoder, names, Q/K order, and damaged files."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind

from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.report.diagnostic import AmkError, Exit
from tests.engine import tiny_model
from tests.engine.ggml_formats import FORMATS


def blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Random stored bytes [rows, bytes per row] whose half-precision scales are ordinary numbers."""
    _, size, scales = FORMATS[kind]
    elements = 256 if kind.endswith("_K") else 32
    random = np.random.default_rng(7)
    data = random.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    for at in scales:
        halves = random.uniform(-0.1, 0.1, len(data)).astype("<f2")
        data[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return data.reshape(rows, -1)


@pytest.mark.parametrize("kind", FORMATS)
def test_storage_format_matches_its_definition(kind: str, tmp_path: Path) -> None:
    decode, size, _ = FORMATS[kind]
    raw = blocks(kind, tiny_model.FFN, tiny_model.HIDDEN)
    arrays = tiny_model.weights()
    path = tiny_model.write_gguf(tmp_path / "m.gguf", arrays, raw={"l1.w_up": (raw, Kind[kind])})
    rows = slice(37, 41)
    expected = [decode(bytes(block)) for block in raw[rows].reshape(-1, size)]
    found = open_checkpoint(path).tensor("l1.w_up", rows)
    np.testing.assert_allclose(found, np.array(expected).reshape(4, -1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16])
def test_floating_point_formats_are_exact(kind: Kind, tmp_path: Path) -> None:
    arrays = tiny_model.weights()
    matrices = {name: kind for name, array in arrays.items() if array.ndim == 2}
    checkpoint = open_checkpoint(tiny_model.write_gguf(tmp_path / "m.gguf", arrays, matrices))
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), array, err_msg=name)


@pytest.mark.parametrize(("arch", "tied"), [("llama", True), ("qwen2", False), ("qwen3", True)])
def test_every_tensor_by_its_logical_name(arch: str, tied: bool, tmp_path: Path) -> None:
    arrays = tiny_model.weights(arch, tied=tied)
    checkpoint = open_checkpoint(tiny_model.write_gguf(tmp_path / "m.gguf", arrays, arch=arch))
    assert set(checkpoint.shapes) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), array, err_msg=name)
    if tied:
        assert checkpoint.spec.tied_embeddings
        np.testing.assert_array_equal(checkpoint.tensor("lm_head", slice(3, 9)), arrays["embed"][3:9])


def test_row_slices_of_interleaved_q_and_k_equal_slices_of_the_whole(tmp_path: Path) -> None:
    arrays = tiny_model.weights()
    checkpoint = open_checkpoint(tiny_model.write_gguf(tmp_path / "m.gguf", arrays, {"l0.wq": Kind.Q8_0}))
    for name in ("l0.wq", "l1.wk", "l0.w_up", "final_norm"):
        whole = checkpoint.tensor(name)
        for rows in (slice(0, 1), slice(31, 33), slice(60, 70), slice(100, None), slice(5, 5), slice(-3, None)):
            np.testing.assert_array_equal(checkpoint.tensor(name, rows), whole[rows])


def test_strided_slice_and_unknown_name_are_errors_of_the_caller(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_model.write_gguf(tmp_path / "m.gguf", tiny_model.weights()))
    with pytest.raises(ValueError, match="step 2"):
        checkpoint.tensor("embed", slice(0, 8, 2))
    with pytest.raises(KeyError):
        checkpoint.tensor("l2.wq")


def refused(path: Path, *codes: str) -> str:
    """The message with which opening and reading all of `path` is refused."""
    with pytest.raises(AmkError) as caught:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.shapes:
            checkpoint.tensor(name)
    assert caught.value.exit_code is Exit.INPUT
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code in codes
    return diagnostic.message


@pytest.mark.turns(4)
def test_truncation_anywhere_is_refused(tmp_path: Path) -> None:
    path = tiny_model.write_gguf(tmp_path / "m.gguf", tiny_model.weights())
    content = path.read_bytes()
    reader = gguf.GGUFReader(path)
    fields = [field.offset for field in reader.fields.values()]
    tensors = [tensor.field.offset for tensor in reader.tensors] + [tensor.data_offset for tensor in reader.tensors]
    cuts = {0, 1, 3, 4, 7, 8, 15, 16, 23, 24, len(content) - 1, reader.data_offset - 1}
    cuts |= {at + extra for at in (*fields, *tensors) for extra in (-1, 0, 1, 9, 13)}
    cut = tmp_path / "cut.gguf"
    for size in sorted(cuts):
        cut.write_bytes(content[:size])
        refused(cut, "AMK001", "AMK013")


def test_declared_terabyte_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    path = tiny_model.write_gguf(tmp_path / "m.gguf", tiny_model.weights())
    content = path.read_bytes()
    name = b"token_embd.weight"
    at = content.index(name) + len(name) + 4  # the name, then the number of dimensions
    for shape in ((tiny_model.HIDDEN, 1 << 20), (1 << 20, 1 << 18), (1 << 32, 1 << 32), (1 << 63, 2)):
        path.write_bytes(content[:at] + struct.pack("<QQ", *shape) + content[at + 16 :])
        refused(path, "AMK005", "AMK013")


def test_vocabulary_as_large_as_the_schema_allows_does_not_fit_the_file(tmp_path: Path) -> None:
    path = tiny_model.write_gguf(tmp_path / "m.gguf", tiny_model.weights(tied=True))
    content = path.read_bytes()
    name = b"token_embd.weight"
    at = content.index(name) + len(name) + 4
    path.write_bytes(content[:at] + struct.pack("<QQ", tiny_model.HIDDEN, 1 << 24) + content[at + 16 :])
    assert "past the end of the file" in refused(path, "AMK013")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_value_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    arrays = tiny_model.weights()
    arrays["l1.w_down"][17, 33] = value
    path = tiny_model.write_gguf(tmp_path / "m.gguf", arrays)
    assert refused(path, "AMK013") == f"l1.w_down[17, 33] is {value}"


def test_infinite_block_scale_is_refused(tmp_path: Path) -> None:
    raw = blocks("Q4_1", tiny_model.FFN, tiny_model.HIDDEN)
    raw[3, 20:22] = np.array([np.inf], "<f2").view(np.uint8)
    path = tiny_model.write_gguf(tmp_path / "m.gguf", tiny_model.weights(), raw={"l0.w_up": (raw, Kind.Q4_1)})
    assert refused(path, "AMK013").startswith("l0.w_up[3, ")


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    arrays = tiny_model.weights()
    missing = {name: array for name, array in arrays.items() if name != "l1.wo"}
    path = tiny_model.write_gguf(tmp_path / "missing.gguf", missing)
    assert refused(path, "AMK013") == "tensor 'blk.1.attn_output.weight' is missing"
    misshapen = arrays | {"l1.wo": arrays["l1.wo"][:-1]}
    path = tiny_model.write_gguf(tmp_path / "misshapen.gguf", misshapen)
    assert "has shape [255, 256], expected [256, 256]" in refused(path, "AMK013")


def test_storage_type_outside_the_list_is_refused_by_name(tmp_path: Path) -> None:
    raw = np.zeros((tiny_model.FFN, 84), np.uint8)
    path = tiny_model.write_gguf(tmp_path / "m.gguf", tiny_model.weights(), raw={"l0.w_up": (raw, Kind.Q2_K)})
    assert refused(path, "AMK012") == "tensor 'blk.0.ffn_up.weight' is stored as Q2_K"


def test_something_else_is_not_a_checkpoint(tmp_path: Path) -> None:
    other = tmp_path / "weights.bin"
    other.write_bytes(b"\x80\x04")
    assert "not a checkpoint" in refused(other, "AMK013")
    assert "no such file" in refused(tmp_path / "absent.gguf", "AMK013")
