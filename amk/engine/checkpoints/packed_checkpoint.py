"""Directories whose layer matrices are stored as 4-bit codes, in the layouts of AWQ and GPTQ.

A matrix W [out, in] has groups of g columns. Both layouts store fp16 scales [in / g, out] and int32 words of eight
codes, the first in the lowest bits:

    GPTQ   qweight [in / 8, out], eight columns of W in order; qzeros [in / g, out / 8], eight rows in order, each less
           one (less nothing in version 2); g_idx [in], the group of each column.
    AWQ    qweight [in, out / 8] and qzeros [in / g, out / 8], eight rows of W in the order 0 2 4 6 1 3 5 7.

A weight is (code - zero) * scale. The codes are passed on as they are, so that nothing is rounded twice.
"""

from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from amk.engine.checkpoints.checkpoint import Floats, Shape, check_shape
from amk.engine.checkpoints.safetensors_dir import SafetensorsCheckpoint, Stored
from amk.engine.refusal import bad_weights, unsupported
from amk.models.packed_config import PackedLayout
from amk.weights.quantised import Bytes, Quantised, dequantised
from amk.weights.weight_format import WeightFormat, weight_format

PER_WORD = 8
AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""Row, of a word's eight, of each code of an AWQ word."""
_KINDS = {"qweight": "I32", "qzeros": "I32", "scales": "F16", "g_idx": "I32"}


class PackedCheckpoint(SafetensorsCheckpoint):
    """Matrices of the layers by their codes, everything else as in a plain directory."""

    def __init__(self, path: Path, layout: PackedLayout) -> None:
        self._layout = layout
        self._packed: dict[str, dict[str, npt.NDArray[np.generic]]] = {}
        super().__init__(path)

    @property
    def form(self) -> WeightFormat:
        """The format of the layers' matrices."""
        return weight_format(self._layout.form)

    def _open(self, name: str, shape: Shape, tensors: dict[str, Stored]) -> None:
        if len(shape) == 1 or not name.startswith("l") or name == "lm_head":
            super()._open(name, shape, tensors)
            return
        base = self.spec.graph.tensor(name)[1].removesuffix("weight")
        rows, k = shape
        if rows % PER_WORD or k % PER_WORD:
            raise unsupported(self.path, f"{name} {list(shape)} is not made of whole words of eight codes")
        groups = ceil(k / self.form.group)
        wanted: dict[str, Shape] = {"scales": (groups, rows), "qzeros": (groups, rows // PER_WORD)}
        wanted["qweight"] = (k, rows // PER_WORD) if self._layout.method == "awq" else (k // PER_WORD, rows)
        if base + "g_idx" in tensors:
            wanted["g_idx"] = (k,)
        self._packed[name] = {part: self._part(name, base + part, shape, tensors) for part, shape in wanted.items()}
        self.stored_as[name] = self._layout.form
        self._check_order(name, k)

    def _part(self, name: str, stored_as: str, shape: Shape, tensors: dict[str, Stored]) -> npt.NDArray[np.generic]:
        found = tensors.get(stored_as)
        assert self.path is not None
        check_shape(self.path, name, stored_as, found.shape if found else None, shape)
        assert found is not None
        self._names.add(stored_as)
        kind = _KINDS[stored_as.rpartition(".")[2]]
        if found.dtype != kind:
            raise unsupported(found.file, f"tensor {stored_as!r} is stored as {found.dtype}", f"{kind} is read")
        return self._mapped(found, np.dtype("<i4") if kind == "I32" else np.dtype("<f2"))

    def _check_order(self, name: str, k: int) -> None:
        """Columns of a group stand side by side, in order."""
        order = self._packed[name].get("g_idx")
        if order is not None and not np.array_equal(order, np.arange(k) // self.form.group):
            raise unsupported(
                self.path,
                f"the columns of {name} were quantised in the order of their activations (g_idx is not in order)",
                "the columns of a group must lie side by side in the stream",
                help="use a checkpoint that was made without act-order (desc_act false)",
            )

    def _read(self, name: str, start: int, stop: int, out: Floats) -> None:
        if name in self._packed:
            out[...] = dequantised(self.codes(name, slice(start, stop)), self.form)
        else:
            super()._read(name, start, stop, out)

    def codes(self, name: str, rows: slice) -> Quantised:
        """Rows of a layer's matrix as they are stored."""
        parts = self._packed[name]
        start, stop, _ = rows.indices(self.shapes[name][0])
        scales = np.ascontiguousarray(parts["scales"][:, start:stop].T).astype(np.float16)
        if not np.isfinite(scales).all():
            raise bad_weights(self.path, f"a scale of {name} is not a finite number")
        zeros = self._rows(parts["qzeros"], start, stop) + np.uint8(self._layout.zero_offset)
        if self._layout.method == "awq":
            return Quantised(self._rows(parts["qweight"], start, stop), scales, zeros)
        words = np.ascontiguousarray(parts["qweight"][:, start:stop].T)
        return Quantised(_codes_of(words).reshape(len(words), -1), scales, zeros)

    def _rows(self, words: npt.NDArray[np.generic], start: int, stop: int) -> Bytes:
        """Words [n, out / 8] -> codes of rows [start, stop), u8 [stop - start, n]."""
        first, last = start // PER_WORD, ceil(stop / PER_WORD)
        codes = _codes_of(words[:, first:last])
        if self._layout.method == "awq":
            ordered = np.empty_like(codes)
            ordered[..., AWQ_ORDER] = codes
            codes = ordered
        flat = codes.reshape(len(words), -1)[:, start - first * PER_WORD : stop - first * PER_WORD]
        return np.ascontiguousarray(flat.T)


def _codes_of(words: npt.NDArray[np.generic]) -> Bytes:
    """int32 [...] -> u8 [..., 8], the lowest bits first."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(*words.shape, PER_WORD)
