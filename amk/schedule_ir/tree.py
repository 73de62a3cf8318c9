"""The nodes of a tree that a step reads as its rows: what a launch is told of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.ops.attention import TREE_WORDS


def tree_words(parents: Sequence[int], rows: int) -> NDArray[np.int32]:
    """Content of `tree`, i32 [rows * 2]: for each row the bits of the rows before it that it sees, its ancestors.

    parents: of row 1 and those behind it, each the number of an earlier row; row 0 is the root. Rows behind them follow
    each other, like all of them where there are no parents. AMK014 for more nodes than rows, or a parent that is none.
    """
    if len(parents) >= rows or any(not 0 <= parent <= row for row, parent in enumerate(parents)):
        message = f"{len(parents)} nodes behind the first row, each behind its parent, are no tree of {rows} rows"
        raise AmkError(Diagnostic("AMK014", message))
    seen = [0]
    for parent in [*parents, *range(len(parents), rows - 1)]:
        seen.append(seen[parent] | 1 << parent)
    words = np.array([[bits & 0xFFFFFFFF, bits >> 32] for bits in seen], np.uint32)
    assert words.shape == (rows, TREE_WORDS)
    return words.reshape(-1).view(np.int32)
