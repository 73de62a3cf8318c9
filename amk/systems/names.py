"""Counters and buffers of a system that is being written down, and complaints at the caller's line."""

from __future__ import annotations

import contextlib
import os
import sys as interpreter
from dataclasses import dataclass
from typing import Literal

from amk.report.diagnostic import AmkError, Diagnostic, Where

Scope = Literal["cta", "cluster", "gpu", "sys"]
_HERE = os.path.dirname(__file__) + os.sep
_OURS = (_HERE, contextlib.__file__)
_KERNELS = _HERE + "incidents" + os.sep
"""Kernels of this package that are written down as anybody's would be."""


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """A counter that only grows: an mbarrier's phase count, a flag in global memory, a slot's generation.

    system: the one that made it; no other takes it.
    """

    system: object
    number: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Barrier(Counter):
    """An mbarrier, a named barrier or a barrier of a cluster: phases of `arrivals` arrivals each."""

    arrivals: int


@dataclass(frozen=True, slots=True, eq=False)
class Flag(Counter):
    """A word that is stored to, and waited for to hold a value."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Bytes 0 to size - 1 of something."""

    system: object
    number: int
    name: str
    size: int


def caller() -> tuple[str, int]:
    """File and line of the innermost frame outside this package."""
    frame = interpreter._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        if frame.f_code.co_filename.startswith(_KERNELS):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def short(file: str) -> str:
    """Relative to the working directory, where the file is below it."""
    return file.removeprefix(f"{os.getcwd()}{os.sep}")


def refuse(code: str, message: str) -> AmkError:
    file, line = caller()
    return AmkError(Diagnostic(code, message, where=Where(file=file, line=line)))


def integer(what: str, value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value < high:
        raise refuse("AMK005", f"{what} is {str(value)[:40]!r}; it must be an integer from {low} to {high - 1}")
    return value
