"""Every small system up to isomorphism: 4 events on at most 3 agents, 2 counters, 1 cell, thresholds up to 3.

An event has at most one wait (2 counters x 3 thresholds), one signal (one of 2 counters) and one access (read, write):
63 kinds. A system is a shape (events per agent) and four kinds, as a number in base 63. Isomorphic ones (counters
exchanged, agents of equal length exchanged) are looked at once: the one with the least number.

A slice takes every STRIDE-th number of every shape, so that each is a sample of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from amk.validator.program.system import DONT_CARE, I64, assemble
from tests.validator.batches import Batch

KINDS = 63
SHAPES = ((2, 1, 1), (2, 2), (3, 1), (4,))
TOTAL = KINDS**4
STRIDE = 4096
"""Slices in all: number k holds the systems whose number is k modulo this."""
TOGETHER = 256
_WAITS = np.array([0, 4, 5, 6, 1, 2, 3])
_SIGNALS = np.array([0, 2, 1])
EXCHANGED = {(2, 1, 1): (0, 1, 3, 2), (2, 2): (2, 3, 0, 1)}
"""Order of the events after agents of equal length are exchanged."""


def digits(number: I64) -> I64:
    """[n, 4] kinds of the events."""
    return np.stack([number // KINDS**k % KINDS for k in range(3, -1, -1)], axis=1)


def number_of(kinds: I64) -> I64:
    return kinds @ np.array([KINDS**3, KINDS**2, KINDS, 1])


def swapped(kinds: I64) -> I64:
    """The same events with the two counters exchanged."""
    wait, signal, access = kinds // 9, kinds // 3 % 3, kinds % 3
    return _WAITS[wait] * 9 + _SIGNALS[signal] * 3 + access


def canonical(shape: tuple[int, ...], number: I64) -> I64:
    """Those of the numbers that are the least of their class."""
    kinds = digits(number)
    images = [swapped(kinds)]
    if shape in EXCHANGED:
        order = list(EXCHANGED[shape])
        images += [kinds[:, order], swapped(kinds)[:, order]]
    least = np.min([number_of(image) for image in images], axis=0)
    return number[number <= least]


def joined(shape: tuple[int, ...], number: I64) -> Batch:
    """The systems with these numbers as one."""
    count = len(number)
    kinds = digits(number).reshape(-1)
    system = np.repeat(np.arange(count), 4)
    agent = (np.arange(count)[:, None] * len(shape) + np.repeat(np.arange(len(shape)), shape)).reshape(-1)
    event = np.arange(4 * count)
    wait, signal, access = kinds // 9, kinds // 3 % 3, kinds % 3
    w, s, a = np.flatnonzero(wait), np.flatnonzero(signal), np.flatnonzero(access)
    waits = np.stack((event[w], 2 * system[w] + (wait[w] - 1) // 3, (wait[w] - 1) % 3 + 1), axis=1)
    signals = np.stack((event[s], 2 * system[s] + signal[s] - 1, np.ones_like(s)), axis=1)
    zero = np.zeros_like(a)
    columns = (event[a], system[a], zero, zero + 1, access[a] - 1, zero + DONT_CARE, zero)
    union = assemble(len(shape) * count, agent, np.zeros(2 * count), waits, signals, np.stack(columns, axis=1))[0]
    return Batch(union, np.arange(count + 1) * len(shape))


def batches(slice_: int) -> Iterator[tuple[tuple[int, ...], Batch]]:
    """All systems of a slice, `TOGETHER` at a time."""
    for shape in SHAPES:
        number = canonical(shape, np.arange(slice_, TOTAL, STRIDE))
        for start in range(0, len(number), TOGETHER):
            yield shape, joined(shape, number[start : start + TOGETHER])
