"""What a Hugging Face `quantization_config` says about how the matrices of the layers are stored.

Read: GPTQ and AWQ with 4 bits and groups of 64 or 128, in the layouts that their reference implementations write. What
else there is (other widths, columns in activation order, kernels' own layouts) is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from amk.report.diagnostic import AmkError
from amk.report.json_file import read_json
from amk.weights.weight_format import FormatName

MAX_CONFIG_BYTES = 1 << 20
_BY_GROUP: dict[int, FormatName] = {64: "int4-g64-zp", 128: "int4-g128-zp"}


@dataclass(frozen=True)
class PackedLayout:
    """form: what the codes are. zero_offset: what a stored zero point is less than the one it means."""

    method: Literal["awq", "gptq"]
    form: FormatName
    zero_offset: int


def packed_layout(config: Mapping[str, Any]) -> PackedLayout:
    """The layout that a `quantization_config` describes; ValueError saying what is not read."""
    method = config.get("quant_method")
    if method not in ("awq", "gptq"):
        raise ValueError(f"weights quantised by {str(method)[:40]!r} are not read; awq and gptq are")
    bits = config.get("bits", config.get("w_bit"))
    if bits != 4:
        raise ValueError(f"{method} weights have {str(bits)[:20]} bits; 4 are read")
    group = config.get("group_size", config.get("q_group_size"))
    if group not in _BY_GROUP:
        raise ValueError(f"{method} groups have {str(group)[:20]} columns; 64 and 128 are read")
    if config.get("lm_head"):
        raise ValueError("a quantised lm_head is not read")
    if method == "awq":
        _check_awq(config)
        return PackedLayout("awq", _BY_GROUP[group], 0)
    return PackedLayout("gptq", _BY_GROUP[group], _gptq_zero_offset(config))


def _check_awq(config: Mapping[str, Any]) -> None:
    version = _layout(config, "version", "gemm")
    if version != "gemm":
        raise ValueError(f"the awq layout {version!r} is not read; 'gemm' is")
    if config.get("zero_point") is False:
        raise ValueError("awq weights without zero points are not read")
    kept = config.get("modules_to_not_convert") or []
    if any(name != "lm_head" for name in kept):
        raise ValueError(f"some matrices are not quantised: {', '.join(map(str, kept))[:100]}")


def _gptq_zero_offset(config: Mapping[str, Any]) -> int:
    if config.get("desc_act"):
        raise ValueError(
            "desc_act is true: columns are quantised in the order of their activations, so that the columns of a group "
            "lie apart (g_idx); a stream of chunks needs each group's columns side by side"
        )
    layout = _layout(config, "checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise ValueError(f"the gptq layout {layout!r} is not read; 'gptq' and 'gptq_v2' are")
    return 1 if layout == "gptq" else 0


def _layout(config: Mapping[str, Any], own: str, usual: str) -> str:
    """The layout by the method's own field, or else by `format`, as in transformers."""
    found = next((config[key] for key in (own, "format") if config.get(key) is not None), usual)
    return str(found).lower()[:20]


def layout_of_directory(path: Path) -> PackedLayout | None:
    """The layout that the directory's config.json names; None if it names none, or is not there, or is not read."""
    file = path / "config.json" if path.is_dir() else path
    if file.name != "config.json" or not file.is_file():
        return None
    try:
        values = read_json(file, MAX_CONFIG_BYTES)
        config = values.get("quantization_config") if isinstance(values, dict) else None
        return packed_layout(config) if isinstance(config, dict) else None
    except (AmkError, ValueError):
        return None  # reading the model from the same file says what is wrong with it
