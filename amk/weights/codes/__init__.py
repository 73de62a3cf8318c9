"""Kinds of codes. Each is a file here, found by its name and imported when a format first names it, and a `.cuh`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

from amk.weights.code import Code

_FILES = tuple(sorted(info.name for info in iter_modules(__path__)))


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
