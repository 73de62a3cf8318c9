"""bf16 bits go from the file to the stream as they are: the same bytes as by float32, in every place, and checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amk.engine.checkpoints.checkpoint import Checkpoint
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.packed_weights import packed_weights
from amk.interpreter.constants import embedding
from amk.interpreter.packing import packed_array
from amk.models.model import ModelSpec
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import F32, Bits, to_bf16_bits
from amk.weights.quantised import nearest
from tests.engine import tiny_model
from tests.engine.tiny import tiny_plan


class InFloats:
    """A checkpoint without its bits. asked: tensors that were read as float32."""

    def __init__(self, source: Checkpoint) -> None:
        self._source, self.asked = source, set[str]()

    def tensor(self, name: str, rows: slice = slice(None)) -> F32:
        self.asked.add(name)
        return self._source.tensor(name, rows)


def write(path: Path, dtype: str = "BF16", model_type: str = "llama") -> Checkpoint:
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    changes = {"model_type": model_type, "architectures": [names[model_type]]}
    return open_checkpoint(tiny_model.write_single(path, tiny_model.weights(model_type), dtype, **changes))


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_bits_are_those_of_the_tensor(model_type: str, tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "tiny", model_type=model_type)
    for name, shape in checkpoint.shapes.items():
        for rows in (slice(None), slice(1, shape[0] - 2), slice(3, 3)):
            found = checkpoint.bits(name, rows)
            assert found is not None
            np.testing.assert_array_equal(found, to_bf16_bits(checkpoint.tensor(name, rows)), err_msg=name)


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_other_types_have_none(dtype: str, tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "tiny", dtype)
    assert all(checkpoint.bits(name, slice(None)) is None for name in checkpoint.shapes)


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC1, 0xFF81])
def test_what_is_no_number_is_named(bits: int, tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "tiny")
    file = tmp_path / "tiny" / "model.safetensors"
    data = bytearray(file.read_bytes())
    row = checkpoint.bits("l1.w_up", slice(5, 6))
    assert row is not None
    data[(at := data.index(row.tobytes())) : at + 2] = bits.to_bytes(2, "little")
    file.write_bytes(data)
    changed = open_checkpoint(tmp_path / "tiny")
    with pytest.raises(AmkError, match=r"AMK013: l1.w_up\[5, 0\] is -?(inf|nan)"):
        changed.bits("l1.w_up", slice(4, 7))
    assert changed.bits("l1.w_up", slice(6, 9)) is not None
    with pytest.raises(AmkError, match=r"l1.w_up\[5, 0\]"):
        packed_array(plan_of(changed.spec), changed)


def plan_of(model: ModelSpec) -> Schedule:
    return tiny_plan(model, workers=5)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_the_stream_is_the_same_as_by_float32(model_type: str, tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "tiny", model_type=model_type)
    floats, schedule = InFloats(checkpoint), plan_of(checkpoint.spec)
    np.testing.assert_array_equal(packed_array(schedule, checkpoint), packed_array(schedule, floats))
    np.testing.assert_array_equal(embedding(checkpoint.spec, checkpoint), embedding(checkpoint.spec, floats))
    assert {"embed", "l0.wq", "l1.w_gate", "lm_head"} <= floats.asked


def test_no_matrix_of_bf16_becomes_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = write(tmp_path / "tiny")
    monkeypatch.setattr(type(checkpoint), "tensor", lambda *_: pytest.fail("read as float32"))
    parts: list[Bits] = []
    packed_weights(plan_of(checkpoint.spec), checkpoint, lambda _, packed: parts.append(packed), None, nearest)
    assert parts and embedding(checkpoint.spec, checkpoint).base is not None
