"""Tagged words: each 8-byte word of a tagged buffer carries the tag of the step that wrote it.

A reading event happens once every word that it declares to read carries its own tag. In memory a consumer may take its
words one by one; here it takes them all at the last moment, which is when an early overwrite shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from amk.interpreter.fault import Fault
from amk.schedule_ir.memory import ITEM_BYTES, Buffer

WORD_BYTES = 8
DATA_BYTES = 4
W = TypeVar("W")


class TaggedWords(Generic[W]):
    """The tags of one buffer, and who waits for which word. Tags outlive launches, as memory does."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self._per_word = DATA_BYTES // ITEM_BYTES[buffer.dtype]
        self.tags: NDArray[np.int64] = np.zeros(-(-buffer.bytes // WORD_BYTES), np.int64)
        self._waiters: list[tuple[int, int, W]] = []

    def missing(self, lo: int, hi: int, tag: int) -> int | None:
        """The first word of bytes [lo, hi) whose tag is not `tag`, if any."""
        wrong = self.tags[lo // WORD_BYTES : -(-hi // WORD_BYTES)] != tag
        return lo // WORD_BYTES + int(wrong.argmax()) if np.count_nonzero(wrong) else None

    def holds(self, lo: int, hi: int, tag: int) -> bool:
        """Elements [lo, hi) all carry `tag`."""
        return not np.count_nonzero(self.tags[lo // self._per_word : -(-hi // self._per_word)] != tag)

    def write(self, lo: int, hi: int, tag: int) -> Iterable[W]:
        """Elements [lo, hi) were written with `tag`; returns who waited for one of these words to carry it."""
        if lo % self._per_word or hi % self._per_word:
            raise Fault(f"writes {self.buffer.name}[{lo}:{hi}], which splits a tagged word: the rest of it is lost")
        first, last = lo // self._per_word, hi // self._per_word
        self.tags[first:last] = tag
        if not self._waiters:
            return ()
        due = [w for w in self._waiters if first <= w[0] < last and w[1] == tag]
        if due:
            self._waiters = [w for w in self._waiters if not (first <= w[0] < last and w[1] == tag)]
        return [who for _, _, who in due]

    def block(self, word: int, tag: int, who: W) -> None:
        self._waiters.append((word, tag, who))

    def forget_waiters(self) -> None:
        self._waiters.clear()
