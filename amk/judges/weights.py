"""Random weights of a model, and the numbers that a format of codes makes of them.

The codes are chosen by the product's quantiser, as a checkpoint of codes would hold them; what a code stands for is
written here once more, from the definition of the format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from amk.judges.forward import Floats
from amk.models.model_spec import ModelSpec
from amk.weights.bfloat import round_bf16
from amk.weights.quantised import Quantised, nearest
from amk.weights.weight_format import FormatName, weight_format

F32 = NDArray[np.float32]
MOST_ELEMENTS = 1 << 24


class RandomWeights:
    """Every tensor of a model, a function of its name and shape alone; matrices and embedding hold bf16 numbers.

    The numbers are spread so that a wrong read shows in the logits: norms differ by element, biases are large.
    ValueError for a model of more than MOST_ELEMENTS.
    """

    def __init__(self, model: ModelSpec) -> None:
        if model.params > MOST_ELEMENTS:
            raise ValueError(f"a model of {model.params:,} weights is too large to judge")
        self.model = model
        self.arrays = {name: _drawn(name, shape) for name, shape in shapes(model).items()}
        if "embed" in self.arrays and model.tied_embeddings:
            self.arrays["lm_head"] = self.arrays["embed"]

    def tensor(self, name: str, rows: slice = slice(None)) -> F32:
        return self.arrays[name][rows].copy()

    def stored(self, form_of: Callable[[str], FormatName]) -> dict[str, Floats]:
        """The tensors as a plan holds them; form_of: the format of a matrix, by its tensor's name."""
        out: dict[str, Floats] = {}
        for name, array in self.arrays.items():
            streamed = array.ndim == 2 and name != "embed"
            out[name] = np.asarray(_stored(name, self.arrays[name].shape, form_of(name)) if streamed else array, float)
        if "embed" in self.arrays and self.model.tied_embeddings:
            out["lm_head"] = numbers(self.arrays["embed"], form_of("lm_head"))
        return out


def shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors; a tied lm_head is not one of its own."""
    return dict(model.tensors())


@lru_cache(maxsize=512)
def _drawn(name: str, shape: tuple[int, ...]) -> F32:
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    if name.endswith("norm"):
        return np.asarray(1 + values / 4, np.float32)
    if len(shape) == 1:
        return np.asarray(values / 2, np.float32)
    return round_bf16(values if name == "embed" else values * 2 / np.sqrt(shape[1]))


@lru_cache(maxsize=512)
def _stored(name: str, shape: tuple[int, ...], form: FormatName) -> Floats:
    return numbers(_drawn(name, shape), form)


def numbers(rows: F32, form: FormatName) -> Floats:
    """f64 [rows, k]: what a matrix in this format holds of these rows."""
    if form == "bf16":
        return np.asarray(rows, np.float64)
    codes = nearest(rows, weight_format(form))
    return meaning(codes, form)


def meaning(stored: Quantised, form: FormatName) -> Floats:
    """f64 [rows, k]: (code - zero) * scale, zero and scale being those of the code's row and group of columns."""
    kind, *rest = form.split("-")
    codes = np.asarray(stored.codes, np.float64)
    group = next((int(part[1:]) for part in rest if part[0] == "g"), codes.shape[1])
    place = np.arange(codes.shape[1]) // group
    if kind == "int8":
        codes = np.where(codes > 127, codes - 256, codes)
    elif kind == "fp8":
        codes = E4M3[np.asarray(stored.codes, np.int64)]
    else:
        codes = codes - (8.0 if stored.zeros is None else np.asarray(stored.zeros, np.float64)[:, place])
    return np.asarray(codes * np.asarray(stored.scales, np.float64)[:, place])


def _e4m3(code: int) -> float:
    """OCP 8-bit floating point E4M3: a sign, 4 bits of exponent with bias 7, 3 of fraction; subnormal at exponent 0."""
    exponent, fraction = (code >> 3) % 16, code % 8
    size = (8 + fraction) / 8 * 2.0 ** (exponent - 7) if exponent else fraction / 8 * 2.0**-6
    return -size if code >= 128 else size


E4M3 = np.array([_e4m3(code) for code in range(256)])
_FINITE = np.sort(np.array([_e4m3(code) for code in range(127)]))


def kept_in_fp8(values: Floats) -> Floats:
    """Each number's nearest E4M3 number, at most +-448; of two that are as near, the one with an even code."""
    sizes = np.minimum(np.abs(values), 448.0)
    above = np.clip(np.searchsorted(_FINITE, sizes), 1, len(_FINITE) - 1)
    low, high = _FINITE[above - 1], _FINITE[above]
    nearer = np.where(sizes - low == high - sizes, (above - 1) % 2 == 0, sizes - low < high - sizes)
    return np.asarray(np.copysign(np.where(nearer, low, high), values))
