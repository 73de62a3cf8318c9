"""Kinds of codes: how numbers become codes, what codes stand for, and how the kernels multiply them.

Each is a file here, found by its name and imported when a format first names it, and a `.cuh`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal

_FILES = tuple(sorted(info.name for info in iter_modules(__path__)))

Staged = Literal["bf16", "digits", "halves"]
"""Layouts of the vector that a matrix multiplies: dtypes of its buffer. digits, halves: `block_point.py`."""
Array = Any
"""Of numpy or of torch, which is then `xp`. Both have the functions that a kind calls by the same names."""
Coder = Callable[[Array, Any, Any], Array]


def absent(values: Array, zero: Any, xp: Any) -> Array:
    """Of numbers that are stored as they are."""
    raise TypeError("plain numbers have no codes")


@dataclass(frozen=True)
class Code:
    """One kind of code.

    bits: 4 or 8, whose tiles `chunks.py` has, or 16 of numbers that are stored as they are. formats: names of those
    that there are (`weight_format`). staged: what one vector is staged as to be multiplied with the codes. largest: the
    number that the largest magnitude of a group becomes in units of the scale, 0 of plain numbers, which have neither
    scales nor codes. middle: the code of 0 where no zero points are stored.
    encode (values, zero, xp): f32 values in units of their scale -> the nearest codes, u8, clipped to the range.
    decode (codes, zero, xp): u8 codes -> the numbers that they stand for, in units of their scale, f32, exactly.
    zero: the code of 0, a number or f32 of a shape that fits.
    """

    bits: int
    formats: tuple[str, ...]
    staged: Staged
    largest: float = 0.0
    middle: int = 0
    encode: Coder = absent
    decode: Coder = absent


class _Codes(Mapping[str, Code]):
    """Name -> `CODE` of the file. A look-up imports one file, going through all of them imports all."""

    def __getitem__(self, name: str) -> Code:
        if name not in _FILES:
            raise KeyError(name)
        found: Code = import_module(f"{__name__}.{name}").CODE
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_FILES)

    def __len__(self) -> int:
        return len(_FILES)


CODES: Mapping[str, Code] = _Codes()
