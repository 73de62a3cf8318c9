"""How a token follows from logits: the largest one, or a draw behind filters, by sorting, in float64.

Semantics (those of transformers' `generate`): logits / temperature; top-k keeps the rows that are not below the k-th
largest; top-p then removes the least probable rows while those removed add up to at most 1 - p; the row with the
largest sum of scaled logit and Gumbel noise is taken, which is a draw from the softmax of what is left. The noise is a
function of seed, position and row: Philox4x32-10 (Salmon et al., SC 2011) with the seed as its key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amk.judges.forward import Floats

WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Drawing:
    """temperature 0 takes the largest logit; top_k 0 and top_p 1 filter nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


GREEDY = Drawing()


def chosen(logits: Floats, position: int, drawing: Drawing = GREEDY, slack: float = 2e-3) -> tuple[int, bool]:
    """(the token, whether it is beyond doubt: another choice of rows or scores that near would not change it)."""
    if drawing.temperature == 0:
        best = int(np.argmax(logits))
        return best, _gap(logits) > slack * max(1.0, float(np.abs(logits).max()))
    noise = gumbel(drawing.seed, position, logits.size)
    picks = {_pick(logits, noise, drawing, by) for by in (-slack, 0.0, slack)}
    scores = np.where(_filter(logits, drawing, slack), logits / drawing.temperature + noise, -np.inf)
    return _pick(logits, noise, drawing, 0.0), len(picks) == 1 and _gap(scores) > slack / drawing.temperature * 4


def _gap(scores: Floats) -> float:
    order = np.sort(scores)
    return float(order[-1] - order[-2]) if scores.size > 1 else math.inf


def _pick(logits: Floats, noise: Floats, drawing: Drawing, by: float) -> int:
    return int(np.argmax(np.where(_filter(logits, drawing, by), logits / drawing.temperature + noise, -np.inf)))


def _filter(logits: Floats, drawing: Drawing, by: float) -> NDArray[np.bool_]:
    """The rows that the filters leave, with the cuts moved by a little."""
    scores = logits / drawing.temperature
    left = np.ones(scores.size, bool)
    if 0 < drawing.top_k < scores.size:
        left &= scores >= np.sort(scores)[-drawing.top_k] - by
    if drawing.top_p < 1:
        order = np.argsort(np.where(left, scores, -np.inf), kind="stable")
        powers = np.where(left, np.exp(scores - scores.max()), 0.0)[order]
        gone = np.cumsum(powers / powers.sum()) <= 1 - drawing.top_p - by
        gone[-1] = False
        left &= scores >= scores[order][~gone][0]
    return left


def gumbel(seed: int, position: int, rows: int) -> Floats:
    """-log(-log(1 - v)) of the uniform v of each row, f64 [rows]."""
    out = []
    for row in range(rows):
        high, low = _philox((seed & WORD, seed >> 32 & WORD), (row, position, 0, 0))[:2]
        v = min(high * 2.0**-32 + (low + 0.5) * 2.0**-64, 1 - 2.0**-24)
        out.append(-math.log(-math.log1p(-v)))
    return np.array(out)


def _philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Ten rounds on four 32-bit words."""
    (first, second), (a, b, c, d) = key, counter
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = right >> 32 ^ b ^ first, right & WORD, left >> 32 ^ d ^ second, left & WORD
        first, second = first + 0x9E3779B9 & WORD, second + 0xBB67AE85 & WORD
    return a, b, c, d
