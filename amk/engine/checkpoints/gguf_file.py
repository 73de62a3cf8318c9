"""A GGUF file as a checkpoint: `gguf` dequantises, this module names, checks and un-permutes.

Converters of the llama architecture store the rows of Q and K with each rotated pair side by side (2k, 2k + 1); amk
wants the pair head_dim/2 apart. Row r = h*d + s*d/2 + k (head h, half s, pair k) is stored at h*d + 2k + s.
The qwen architectures are stored as they are.
"""

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind

from amk.engine.checkpoints.checkpoint import Checkpoint, Floats, Shape, check_shape, stored_name
from amk.engine.checkpoints.gguf_blocks import decode
from amk.engine.refusal import bad_weights, unsupported
from amk.models.gguf_header import GgufTensor, read_gguf_header
from amk.models.model_gguf import model_from_gguf

KINDS = frozenset(
    {Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K}
    | {Kind.Q6_K}
)
_DERIVED = {"rope_freqs.weight"}
"""Tensors that the description of the model is made of."""

PERMUTED = frozenset({"llama"})  # architectures whose converters interleave the rotated pairs

_PLAIN: dict[Kind, np.dtype[Any]] = {Kind.F32: np.dtype("<f4"), Kind.F16: np.dtype("<f2")}  # others stay bytes
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


class GgufCheckpoint(Checkpoint):
    """Opening checks names, shapes, storage types and bounds of every tensor; reading touches only the asked rows."""

    def __init__(self, path: Path) -> None:
        header = read_gguf_header(path)
        super().__init__(model_from_gguf(path, header), path)
        self._interleaved = header.fields["general.architecture"] in PERMUTED
        file: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
        self._kinds: dict[str, Kind] = {}
        self._stored: dict[str, npt.NDArray[np.generic]] = {}
        for name, shape in self.shapes.items():
            stored = stored_name(name, _PER_LAYER, _TOP)
            tensor = header.tensors.get(stored)
            check_shape(path, name, stored, tensor.shape if tensor else None, shape)
            if tensor is not None:
                self._kinds[name] = _kind(path, stored, tensor.type)
                self.stored_as[name] = self._kinds[name].name
                self._stored[name] = _rows_of(path, stored, file, tensor, self._kinds[name])
        known = {stored_name(name, _PER_LAYER, _TOP) for name in self.shapes} | _DERIVED
        for stored in header.tensors:
            if stored not in known:
                raise unsupported(path, f"tensor {stored!r} has no place in a model of this architecture")

    def _read(self, name: str, start: int, stop: int, out: Floats) -> None:
        rows: slice | npt.NDArray[np.intp] = slice(start, stop)
        if self._interleaved and name.endswith((".wq", ".wk", ".bq", ".bk")):
            rows = interleaved_rows(start, stop, self.spec.head_dim)
        # A scale may be infinite or NaN in a damaged file: the caller reports it, numpy need not.
        with np.errstate(invalid="ignore", over="ignore"):
            decode(self._stored[name][rows], self._kinds[name], out)


def _kind(path: Path, stored_name: str, number: int) -> Kind:
    try:
        kind = Kind(number)
    except ValueError:
        raise unsupported(path, f"tensor {stored_name!r} has storage type {number}, which is not known") from None
    if kind not in KINDS:
        known = ", ".join(sorted(kind.name for kind in KINDS))
        raise unsupported(path, f"tensor {stored_name!r} is stored as {kind.name}", f"amk reads {known}")
    return kind


def _rows_of(
    path: Path, stored_name: str, file: npt.NDArray[np.uint8], tensor: GgufTensor, kind: Kind
) -> npt.NDArray[np.generic]:
    """The stored bytes of a tensor, one row of the array per row of the tensor, as a view of the file.

    Vectors (norms, biases) become a column, so that taking rows takes elements.
    """
    shape: Shape = tensor.shape if len(tensor.shape) > 1 else (*tensor.shape, 1)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise bad_weights(path, f"tensor {stored_name!r} has rows of {shape[-1]}, which {kind.name} cannot store")
    row_bytes = shape[-1] // block * block_bytes
    end = tensor.offset + prod(shape[:-1]) * row_bytes
    if end > file.size:
        raise bad_weights(
            path,
            f"tensor {stored_name!r} reaches past the end of the file",
            f"it ends at byte {end:,}; the file has {file.size:,}",
            help="the download may be incomplete: fetch the file again",
        )
    rows = file[tensor.offset : end].reshape(-1, row_bytes)
    return rows.view(_PLAIN[kind]) if kind in _PLAIN else rows


def interleaved_rows(start: int, stop: int, head_dim: int) -> npt.NDArray[np.intp]:
    """Where a pair-interleaved file keeps rows [start, stop) of the rotate-half order."""
    head, inside = np.divmod(np.arange(start, stop), head_dim)
    half, pair = np.divmod(inside, head_dim // 2)
    return np.asarray(head * head_dim + 2 * pair + half, dtype=np.intp)
