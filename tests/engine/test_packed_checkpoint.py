"""AWQ and GPTQ directories: the codes arrive in the stream as they are stored; what is not read is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.session import Session
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.load import check_model
from amk.models.packed_config import layout_of_directory
from amk.planner.formats import formats
from amk.report.diagnostic import AmkError, Exit
from tests.engine import tiny_model
from tests.engine.tiny import reference_decoder, tiny_plan
from tests.reference.llama_numpy import greedy

GROUP = 64
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}


def words(codes: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """[n, 8 m] codes -> int32 [n, m], code order[i] of each eight in bits 4 i."""
    eights = codes.astype(np.uint64).reshape(len(codes), -1, 8)
    total = sum(eights[..., place] << np.uint64(4 * i) for i, place in enumerate(order))
    return np.asarray(total, np.uint32).view(np.int32)


def write(directory: Path, config: dict[str, Any], seed: int = 0, **changes: Any) -> dict[str, np.ndarray]:
    """A directory in the layout that `config` names; returns the arrays that it stands for, in float64."""
    random, arrays = np.random.default_rng(seed), tiny_model.weights()
    named: dict[str, np.ndarray] = {}
    stands_for: dict[str, np.ndarray] = {}
    layout = config.get("checkpoint_format", config.get("format", "gptq"))
    less = 1 if config["quant_method"] == "gptq" and layout.lower() != "gptq_v2" else 0
    straight = tuple(range(8))
    for name, array in arrays.items():
        if array.ndim == 1 or name in ("embed", "lm_head"):
            named[tiny_model.hf_name(name)], stands_for[name] = array.astype(np.float16), array.astype(np.float64)
            continue
        rows, k = array.shape
        groups = -(-k // GROUP)
        codes = random.integers(0, 16, (k, rows))
        zeros = random.integers(less, 16 + less, (groups, rows))
        scales = random.uniform(0.002, 0.02, (groups, rows)).astype(np.float16)
        base = tiny_model.hf_name(name).removesuffix("weight")
        if config["quant_method"] == "awq":
            named[base + "qweight"], named[base + "qzeros"] = words(codes, ORDER), words(zeros, ORDER)
        else:
            named[base + "qweight"] = np.ascontiguousarray(words(codes.T, straight).T)
            named[base + "qzeros"] = words(zeros - less, straight)
            named[base + "g_idx"] = (np.arange(k) // GROUP).astype(np.int32)
        named[base + "scales"] = scales
        spread = np.repeat(np.arange(groups), GROUP)[:k]
        stands_for[name] = ((codes - zeros[spread]) * scales.astype(np.float64)[spread]).T
    named |= changes
    tiny_model.write_config(directory, quantization_config=config)
    safetensors.numpy.save_file(named, directory / "model.safetensors")
    return stands_for


NAMED = ("quant_method", "checkpoint_format", "format")
CONFIGS = [
    AWQ,
    GPTQ,
    GPTQ | {"checkpoint_format": "gptq_v2", "sym": True},
    GPTQ | {"format": "GPTQ_v2"},
    GPTQ | {"checkpoint_format": "gptq", "format": "gptq_v2"},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: "-".join(c[key] for key in NAMED if key in c))
def test_rows_are_what_the_layout_defines(config: dict[str, Any], tmp_path: Path) -> None:
    expected = write(tmp_path / "tiny", config)
    checkpoint = open_checkpoint(tmp_path / "tiny")
    assert checkpoint.unread == ()
    for name, array in expected.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), array.astype(np.float32), err_msg=name)
        np.testing.assert_array_equal(checkpoint.tensor(name, slice(3, 21)), array[3:21].astype(np.float32))


@pytest.mark.turns(24)
@pytest.mark.parametrize("config", CONFIGS[:2], ids=lambda c: c["quant_method"])
@pytest.mark.parametrize("copies", ["events", "whole"])
def test_a_packed_model_decodes_like_its_definition(config: dict[str, Any], copies: Any, tmp_path: Path) -> None:
    """Through the packed stream, without a second quantisation."""
    expected = write(tmp_path / "tiny", config)
    checkpoint = open_checkpoint(tmp_path / "tiny")
    layout = layout_of_directory(tmp_path / "tiny")
    assert layout is not None and layout.form == "int4-g64-zp"
    schedule = tiny_plan(checkpoint.spec, workers=6, warps=6, chunk_bytes=1024, weights=formats(layout.form, "bf16"))
    check_model(schedule.model, checkpoint)
    session = Session(CpuEngine(schedule, checkpoint, copies=copies))
    arrays = {name: array.astype(np.float32) for name, array in expected.items()}
    wanted = list(greedy(reference_decoder(checkpoint.spec, arrays), [3, 17, 5], (), 6))
    assert min(gap for _, gap in wanted) > 1e-3
    assert list(session.generate([3, 17, 5], 6)) == [token for token, _ in wanted]


@pytest.mark.parametrize(
    ("config", "words_of_it"),
    [
        (GPTQ | {"desc_act": True}, "order of their activations"),
        (GPTQ | {"bits": 8}, "8 bits"),
        (GPTQ | {"group_size": -1}, "-1 columns"),
        (GPTQ | {"checkpoint_format": "marlin"}, "marlin"),
        (GPTQ | {"lm_head": True}, "lm_head"),
        (AWQ | {"version": "gemv"}, "gemv"),
        ({key: value for key, value in AWQ.items() if key != "version"} | {"format": "gemv"}, "gemv"),
        (GPTQ | {"format": "marlin"}, "marlin"),
        (AWQ | {"zero_point": False}, "without zero points"),
        (AWQ | {"modules_to_not_convert": ["mlp.gate"]}, "mlp.gate"),
        ({"quant_method": "bitsandbytes", "bits": 4}, "bitsandbytes"),
    ],
)
def test_other_layouts_are_refused(config: dict[str, Any], words_of_it: str, tmp_path: Path) -> None:
    tiny_model.write_config(tmp_path / "tiny", quantization_config=config)
    with pytest.raises(AmkError) as caught:
        open_checkpoint(tmp_path / "tiny")
    assert caught.value.exit_code is Exit.INPUT
    found = caught.value.diagnostics[0]
    assert found.code == "AMK012" and words_of_it in found.message


def test_columns_out_of_order_are_refused(tmp_path: Path) -> None:
    """Some files say desc_act false and are in activation order all the same."""
    shuffled = np.random.default_rng(0).permutation(np.arange(tiny_model.HIDDEN) // GROUP).astype(np.int32)
    write(tmp_path / "tiny", GPTQ, **{"model.layers.1.mlp.up_proj.g_idx": shuffled})
    with pytest.raises(AmkError, match="AMK012") as caught:
        open_checkpoint(tmp_path / "tiny")
    assert "order of their activations" in caught.value.diagnostics[0].message


def test_a_missing_part_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "tiny", AWQ)
    file = tmp_path / "tiny" / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    del tensors["model.layers.0.self_attn.k_proj.qzeros"]
    safetensors.numpy.save_file(tensors, file)
    with pytest.raises(AmkError, match="AMK013") as caught:
        open_checkpoint(tmp_path / "tiny")
    assert "qzeros" in caught.value.diagnostics[0].message


def test_the_directory_names_its_format(tmp_path: Path) -> None:
    write(tmp_path / "tiny", AWQ | {"group_size": 64})
    assert layout_of_directory(tmp_path / "tiny") == layout_of_directory(tmp_path / "tiny" / "config.json")
    values = json.loads((tmp_path / "tiny" / "config.json").read_text())
    del values["quantization_config"]
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(values))
    assert layout_of_directory(tmp_path / "tiny") is None
    assert layout_of_directory(tmp_path / "nowhere") is None
