"""A GGUF file as a checkpoint: the `gguf` package parses and dequantises, this module names, checks and un-permutes.

Converters of the llama architecture store the rows of Q and K with each rotated pair side by side (2k, 2k + 1); amk
wants the pair head_dim/2 apart. Row r = h*d + s*d/2 + k (head h, half s, pair k) is stored at h*d + 2k + s.
The qwen architectures are stored as they are.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from amk.engine.checkpoint import Checkpoint, Floats, check_shape, stored_name
from amk.engine.gguf_header import TensorInfo, check_header
from amk.engine.gguf_spec import spec_of
from amk.engine.refusal import bad_weights, unsupported

KINDS = frozenset(
    {Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K}
    | {Kind.Q6_K}
)
PERMUTED = frozenset({"llama"})  # architectures whose converters interleave the rotated pairs

_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "lm_head": "output.weight"}
_PER_LAYER = {
    "attn_norm": "blk.{}.attn_norm.weight",
    "wq": "blk.{}.attn_q.weight",
    "wk": "blk.{}.attn_k.weight",
    "wv": "blk.{}.attn_v.weight",
    "bq": "blk.{}.attn_q.bias",
    "bk": "blk.{}.attn_k.bias",
    "bv": "blk.{}.attn_v.bias",
    "q_norm": "blk.{}.attn_q_norm.weight",
    "k_norm": "blk.{}.attn_k_norm.weight",
    "wo": "blk.{}.attn_output.weight",
    "ffn_norm": "blk.{}.ffn_norm.weight",
    "w_gate": "blk.{}.ffn_gate.weight",
    "w_up": "blk.{}.ffn_up.weight",
    "w_down": "blk.{}.ffn_down.weight",
}


class _Reader(GGUFReader):  # type: ignore[misc]
    """The package's reader on a plain array: slicing a numpy.memmap costs twice as much, 10^5 times per file."""

    def _get(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.data, np.memmap):
            self.data = self.data.view(np.ndarray)
        return super()._get(*args, **kwargs)


def read_gguf(path: Path) -> tuple[GGUFReader, dict[str, TensorInfo]]:
    """The package's reader of a file whose header `check_header` found sound, and its tensors by name."""
    infos = check_header(path)
    by_name = {info.name: info for info in infos}
    if len(by_name) != len(infos):
        raise bad_weights(path, "two tensors have the same name")
    try:
        return _Reader(path), by_name
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise bad_weights(path, "the GGUF header cannot be read", str(error)) from error


class GgufCheckpoint(Checkpoint):
    """Opening checks names, shapes and storage types; `reader` stays for the tokenizer in the metadata."""

    def __init__(self, path: Path) -> None:
        self.reader, infos = read_gguf(path)
        super().__init__(spec_of(path, self.reader, infos), path)
        self._interleaved = str(self.reader.fields["general.architecture"].contents()) in PERMUTED
        self._data = {tensor.name: tensor for tensor in self.reader.tensors}
        for name, shape in self.shapes.items():
            stored = stored_name(name, _PER_LAYER, _TOP)
            info = infos.get(stored)
            check_shape(path, name, stored, info.shape if info else None, shape)
            if info and info.kind not in KINDS:
                known = ", ".join(sorted(kind.name for kind in KINDS))
                raise unsupported(path, f"tensor {stored!r} is stored as {info.kind.name}", f"amk reads {known}")

    def _read(self, name: str, start: int, stop: int, out: Floats) -> None:
        tensor = self._data[stored_name(name, _PER_LAYER, _TOP)]
        rows: slice | npt.NDArray[np.intp] = slice(start, stop)
        if self._interleaved and name.endswith((".wq", ".wk", ".bq", ".bk")):
            rows = interleaved_rows(start, stop, self.spec.head_dim)
        raw = tensor.data[rows] if tensor.data.ndim == out.ndim else tensor.data.reshape(-1)[rows]
        # A scale may be infinite or NaN in a damaged file: the caller reports it, numpy need not.
        with np.errstate(invalid="ignore", over="ignore"):
            out[...] = dequantize(raw, tensor.tensor_type)


def interleaved_rows(start: int, stop: int, head_dim: int) -> npt.NDArray[np.intp]:
    """Where a pair-interleaved file keeps rows [start, stop) of the rotate-half order."""
    row = np.arange(start, stop)
    head, inside = np.divmod(row, head_dim)
    half, pair = np.divmod(inside, head_dim // 2)
    return np.asarray(head * head_dim + 2 * pair + half, dtype=np.intp)
