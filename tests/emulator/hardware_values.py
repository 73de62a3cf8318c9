"""Approximate instructions of the emulator with the bits that a GPU gives: asked for one by one, as a kernel comes.

The emulator rounds ex2, rsqrt, div and their like once from float64, where PTX leaves a GPU up to 2 units of the last
place. With the GPU's own bits nothing that it computes may differ from the GPU. For a process of its own: what the
emulator calls is replaced before it is linked, and stays so.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import llvmlite.binding as llvm
from numba import types

from amk.emulator.arithmetic import bits
from amk.emulator.arithmetic.floating import floating
from amk.emulator.ptx.encode import form_table

Value = Callable[[str, int, int], int]
"""The word that an instruction makes of one or two words (0 where it takes one)."""
ASKED = "amk_tests_approximate"
MARK = 25
"""Bits of a mode from here on say which approximate instruction it is, from 1; no mode has any that high."""
_APPROXIMATE = types.ExternalFunction(ASKED, types.int64(types.int64, types.int64, types.int64))
_EXACT = types.ExternalFunction("amk_tests_floating", floating.sig)  # type: ignore[attr-defined]


def instructions() -> list[str]:
    """Those whose bits PTX leaves open."""
    return sorted(name for name in form_table() if name.endswith(".f32") and (".approx" in name or ".full" in name))


@dataclass
class Values:
    """What `value` said of every instruction and its words, each asked once; how often each instruction came to be run.
    failed: why `value` had no answer; the emulator went on with 0."""

    value: Value
    said: dict[tuple[str, int, int], int] = field(default_factory=dict)
    run: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def of(self, which: int, a: int, b: int) -> int:
        name = instructions()[which - 1]
        self.run[name] += 1
        key = name, a, b if form_table()[name].operands == "dab" else 0
        if key not in self.said:
            try:
                self.said[key] = self.value(*key)
            except Exception as error:  # noqa: BLE001  no exception passes through compiled code
                self.failed.append(f"{key}: {error!r}")
                return 0
        return self.said[key]


def _floating(operation: int, mode: int, a: int, b: int, c: int) -> int:
    """As the emulator's; of an approximate instruction the word that was asked for."""
    if mode >> MARK:
        return _APPROXIMATE(mode >> MARK, a, b)  # type: ignore[no-any-return]
    return _EXACT(operation, mode, a, b, c)  # type: ignore[no-any-return]


_KEPT: list[object] = []
"""The callback that compiled code holds the address of."""


def take(value: Value) -> Values:
    """From now on approximate instructions in this process's emulator have the bits that `value` says."""
    assert not any(form.mode >> MARK for form in form_table().values()), "taken, or no free bits"
    values = Values(value)
    symbols = [symbol for symbol, _, _ in bits._SEPARATE]
    place = symbols.index(floating.symbol)  # type: ignore[attr-defined]
    symbol, function, signature = bits._SEPARATE[place]
    bits._SEPARATE[place : place + 1] = [(_EXACT.symbol, function, signature), (symbol, _floating, signature)]
    word = ctypes.c_int64
    callback = ctypes.CFUNCTYPE(word, word, word, word)(values.of)
    _KEPT.append(callback)
    llvm.add_symbol(ASKED, ctypes.cast(callback, ctypes.c_void_p).value)
    for number, name in enumerate(instructions(), 1):
        form_table()[name] = replace(form_table()[name], mode=form_table()[name].mode | number << MARK)
    return values
