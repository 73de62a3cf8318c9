"""Temperature, top-k and top-p as the literature has them, by sorting, in fp64: an independent yardstick.

It shares nothing with amk. Top-k keeps everything not below the k-th largest logit; top-p removes the least probable
tokens while those removed add up to at most 1 - p.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def probabilities(logits: Array, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Array:
    """fp64 [vocab] of logits [vocab]: zero for what the filters remove, the softmax of the rest otherwise."""
    scores = logits.astype(np.float64) / temperature
    if top_k:
        scores = np.where(scores < np.sort(scores)[-min(top_k, len(scores))], -np.inf, scores)
    if top_p < 1:
        order = np.argsort(scores, kind="stable")
        removed = np.cumsum(_softmax(scores[order])) <= 1 - top_p
        removed[-1] = False
        least = scores[order][~removed][0]
        scores = np.where(scores < least, -np.inf, scores)
    return _softmax(scores)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()
