"""The next token from logits on the host: the rule of `schedule_ir.sampling`, with the noise that a kernel draws.

Equal logits, seed and position give the token that a schedule gives. Cost: one sort of what top-k kept.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.ranking import float_of, goal_of, gumbel, scores, weights
from amk.schedule_ir.sampling import ROUNDS, Sampling
from amk.weights.bfloat import F32


def choose(logits: F32, sampling: Sampling, pos: int) -> int:
    """The token behind position `pos`, whose logits [vocab] are given; -inf excludes a token. AMK013 for what is no
    number: the weights, or embeddings that were given, leave the range of float32."""
    if math.isnan(logits.max()):
        raise AmkError(Diagnostic("AMK013", "logits are not numbers: the model leaves the range of float32"))
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    inverse, top_k, top_p, low, high = sampling.words().tolist()
    kept = _filter(logits, top_k, top_p & 0xFFFFFFFF, float_of(inverse))
    noise = gumbel((low & 0xFFFFFFFF, high & 0xFFFFFFFF), pos, range(len(logits)))
    found = scores(logits, logits.max(), float_of(inverse), noise)
    return int(np.argmax(np.where(kept, found, np.float32(-np.inf))))


def _filter(logits: F32, top_k: int, top_p: int, inverse: np.float32) -> NDArray[np.bool_]:
    """Rows that the filters leave, ties included. top_k: 0 for all; top_p: p * 2^32, 0 for all."""
    kept = logits > -np.inf
    if 0 < top_k < len(logits):
        kept &= logits >= np.partition(logits, -top_k)[-top_k]
    if top_p:
        rows = np.sort(logits[kept])[::-1]
        sums = np.cumsum(weights(rows, rows[0], inverse), dtype=np.uint64)
        goal = goal_of(_TOP_P_ROUND, int(sums[-1]), top_p)
        kept &= logits >= rows[min(int(np.searchsorted(sums, np.uint64(goal))), len(rows) - 1)]
    return kept


_TOP_P_ROUND = ROUNDS
"""Any round of the search for the cut of top-p: `goal_of` tells the two searches apart by it."""


def log_softmax(logits: F32) -> F32:
    """Natural logarithms of the probabilities, over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted, dtype=np.float64).sum(axis=-1, keepdims=True)), np.float32)
