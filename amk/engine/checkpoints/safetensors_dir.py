"""A Hugging Face directory (config.json and safetensors, one file or shards) as a checkpoint.

The `safetensors` package validates each header; its numpy interface has no bfloat16, so the values are read through a
memory map. The format has no holes: in offset order every tensor begins where the one before it ends.
"""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from amk.engine.checkpoints.checkpoint import CHUNK, Checkpoint, Floats, Shape, check_shape
from amk.engine.refusal import bad_weights, unsupported
from amk.models.graph import Tensor
from amk.models.model import ModelSpec, load_model
from amk.report.json_file import read_json
from amk.weights.bfloat import Bits

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors", re.ASCII)
_DERIVED = re.compile(r"\.rotary_emb\.inv_freq$|\.attention\.(masked_)?bias$")
"""Tensors that old files have of what follows from the configuration: frequencies, a causal mask."""
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}  # BF16: its bits


@dataclass(frozen=True)
class Stored:
    """Where one tensor is: `dtype` as the format spells it, `offset` in bytes from the start of the file."""

    file: Path
    shape: Shape
    dtype: str
    offset: int


class SafetensorsCheckpoint(Checkpoint):
    """Opening checks names, shapes and types against config.json; reading touches only the asked rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(load_model(str(path / "config.json")), path)
        files = _files(path)
        stored = {name: tensor for file in sorted(set(files.values())) for name, tensor in _directory(file).items()}
        self._maps: dict[Path, npt.NDArray[np.uint8]] = {}
        self._values: dict[str, npt.NDArray[np.generic]] = {}
        self._names = set[str]()
        for name, shape in self.shapes.items():
            self._open(name, shape, stored)
        head = self.spec.graph.tensor("lm_head")[1]
        left = stored.keys() - self._names - {head}
        self.unread = tuple(sorted(name for name in left if not _DERIVED.search(name)))
        self._check_tied(head, stored.get(head))

    def _open(self, name: str, shape: Shape, tensors: dict[str, Stored]) -> None:
        """Find the values of one logical tensor."""
        assert self.path is not None
        described, hf_name = self.spec.graph.tensor(name)
        tensor = tensors.get(hf_name)
        whole = shape[0] * described.part[1], *shape[1:]
        check_shape(self.path, name, hf_name, tensor.shape if tensor else None, whole)
        if tensor is None:
            return
        self._names.add(hf_name)
        if tensor.dtype not in _DTYPES:
            known = ", ".join(sorted(_DTYPES))
            raise unsupported(tensor.file, f"tensor {hf_name!r} is stored as {tensor.dtype}", f"amk reads {known}")
        self._values[name] = self._mapped(tensor, _DTYPES[tensor.dtype])
        self.stored_as[name] = tensor.dtype

    def _check_tied(self, name: str, head: Stored | None) -> None:
        """AMK012 if config.json ties the output head to the embedding, and the file holds another one."""
        if head is None or not self.spec.tied_embeddings:
            return
        if head.dtype in _DTYPES and head.shape == self.shapes["embed"]:
            embedding, other = self._values["embed"], self._mapped(head, _DTYPES[head.dtype])
            step = max(1, CHUNK // self.spec.hidden)
            starts = range(0, self.spec.vocab, step)
            same = embedding.dtype == other.dtype
            if same and all(np.array_equal(embedding[at : at + step], other[at : at + step]) for at in starts):
                return
        raise unsupported(
            self.path,
            f"tensor {name!r} differs from the embedding that 'tie_word_embeddings' says it is",
            "versions of transformers disagree about which of the two is the output head",
            help="set tie_word_embeddings to false, or remove the tensor",
        )

    def _mapped(self, tensor: Stored, dtype: np.dtype[Any]) -> npt.NDArray[np.generic]:
        """The values of a tensor as a view of its file."""
        if tensor.file not in self._maps:
            self._maps[tensor.file] = np.memmap(tensor.file, np.uint8, mode="r").view(np.ndarray)
        data = self._maps[tensor.file][tensor.offset : tensor.offset + prod(tensor.shape) * dtype.itemsize]
        return data.view(dtype).reshape(tensor.shape)

    def _stored(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows [start, stop) of a tensor, as the file stores them."""
        described = self.spec.graph.tensor(name)[0]
        rows: slice | npt.NDArray[np.intp] = slice(start, stop)
        if described.part[1] > 1 or described.partly:
            rows = stored_rows(self.spec, described, start, stop)
        return self._values[name][rows]

    def _bits(self, name: str, start: int, stop: int) -> Bits | None:
        if name not in self._values or self._values[name].dtype != _DTYPES["BF16"]:
            return None
        return self._stored(name, start, stop)

    def _read(self, name: str, start: int, stop: int, out: Floats) -> None:
        values = self._stored(name, start, stop)
        if values.dtype == _DTYPES["BF16"]:
            np.left_shift(values, 16, out=out.view(np.uint32), dtype=np.uint32)
        else:
            out[...] = values


def stored_rows(spec: ModelSpec, tensor: Tensor, start: int, stop: int) -> npt.NDArray[np.intp]:
    """Where a file keeps rows [start, stop) of a tensor whose heads take turns with others', or are rotated in part.

    Of such a head the file has the rotated rows in front, in rotate-half order of their own, then the others; here
    pairs are half a head apart, the rotated ones first.
    """
    head, row = np.divmod(np.arange(start, stop), spec.head_dim)
    if tensor.partly:
        row = order_in_head(spec)[row]
    part, parts = tensor.part
    return np.asarray((head * parts + part) * spec.head_dim + row, np.intp)


def order_in_head(spec: ModelSpec) -> npt.NDArray[np.intp]:
    """[head_dim]: which element of a head of the file is each of a head here, see `stored_rows`."""
    half, pair = np.divmod(np.arange(spec.head_dim), spec.head_dim // 2)
    turned = (spec.rotary_dim or spec.head_dim) // 2
    rest = turned * 2 + half * (spec.head_dim // 2 - turned) + pair - turned
    return np.asarray(np.where(pair < turned, half * turned + pair, rest), np.intp)


def _files(path: Path) -> dict[str, Path]:
    """The weight files of the directory, keyed by tensor for shards and by file name for a single file."""
    index, single = path / INDEX, path / "model.safetensors"
    if single.exists():  # also beside an index, as transformers has it
        return {single.name: single}
    if index.exists():
        return _shards(path, index)
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0].name: found[0]}
    if found:
        raise bad_weights(path, f"{len(found)} safetensors files and no {INDEX} that says which belongs to the model")
    pickled = any(path.glob("*.bin")) or any(path.glob("*.pt*"))
    raise bad_weights(
        path,
        "no safetensors files in this directory",
        *(["pickled weights are never read: unpickling runs code from the file"] if pickled else []),
        help="convert the weights to safetensors" if pickled else None,
    )


def _shards(path: Path, index: Path) -> dict[str, Path]:
    values = read_json(index, MAX_INDEX_BYTES)
    weight_map = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise bad_weights(index, "the shard index has no 'weight_map'")
    for tensor, shard in weight_map.items():
        # The name comes from the file: it must not lead anywhere but to a file of this directory.
        if not isinstance(shard, str) or ".." in shard or not _SHARD.fullmatch(shard):
            raise bad_weights(
                index,
                f"the shard of tensor {tensor[:200]!r} is {str(shard)[:200]!r}, which is not the name of a shard",
                "a shard is a file of the same directory whose name ends in .safetensors",
            )
    return {tensor: path / shard for tensor, shard in weight_map.items()}


def _directory(file: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file; the package refuses a header that does not match the file."""
    if not file.is_file():  # also excludes a FIFO, which would block
        raise bad_weights(file, "this file of the model is missing")
    try:
        with safe_open(file, framework="numpy") as opened:
            views = {name: opened.get_slice(name) for name in opened.offset_keys()}
            found = [(name, tuple(view.get_shape()), str(view.get_dtype())) for name, view in views.items()]
    except (SafetensorError, OSError) as error:
        raise bad_weights(
            file,
            "not a complete safetensors file",
            str(error)[:500],
            help="the download may be incomplete: fetch the file again",
        ) from error
    with file.open("rb") as header:
        at = 8 + int.from_bytes(header.read(8), "little")
    stored: dict[str, Stored] = {}
    for name, shape, dtype in found:
        stored[name] = Stored(file, shape, dtype, at)
        at += prod(shape) * _bits(file, name, dtype) // 8
    if at != file.stat().st_size:
        raise bad_weights(file, "the tensors do not fill the file", f"they end at byte {at:,}")
    return stored


def _bits(file: Path, name: str, dtype: str) -> int:
    """Bits per element: the number in the type's name (F8_E4M3, BF16, I64), BOOL is a byte."""
    digits = re.search(r"\d+", dtype)
    if digits is None and dtype != "BOOL":
        raise unsupported(file, f"tensor {name!r} is stored as {dtype}")
    return int(digits.group()) if digits else 8
