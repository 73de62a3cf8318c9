"""Weights of the right shapes from a seed, for measuring models whose real weights are not at hand.

A value depends on (seed, tensor name, row, column) and nothing else, so any slice of rows gives the same numbers as the
whole. Block b of a tensor's rows is the Philox stream of key hash(seed, name) at counter b * 2^64, read as 16-bit
indices into a table of 65,536 normal quantiles.

Table entries are bfloat16 and a matrix's scale is a power of two. So the weights are exact in bf16, fp16 (range
permitting) and fp32, and a comparison between dtypes compares arithmetic, not the rounding of weights.

Scales: W [out, in] near 1/sqrt(in) keeps activations at unit size. 'wo' and 'w_down' are divided by about
sqrt(2 * layers), so that the residual stream does not grow with depth. Norms are 1 +- 1/8, biases 0 +- 1/8.
"""

import hashlib
import math
from functools import cache
from statistics import NormalDist

import numpy as np

from amk.engine.checkpoints.checkpoint import Checkpoint, Floats
from amk.models.model import ModelSpec

_BLOCK = 1 << 18  # elements per counter block: small enough for a thin slice, large enough to amortise the seeding
_SPREAD = 0.125  # standard deviation of norms and biases


class RandomCheckpoint(Checkpoint):
    """Deterministic random weights; tied embeddings are honoured like in a file."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__(spec, None)
        self.seed = seed

    def _read(self, name: str, start: int, stop: int, out: Floats) -> None:
        columns = math.prod(out.shape[1:])
        per_block = max(1, _BLOCK // columns)
        digest = hashlib.blake2b(f"{self.seed}:{name}".encode(), digest_size=16).digest()
        key = np.frombuffer(digest, "<u8")
        flat = out.reshape(stop - start, columns)
        for block in range(start // per_block, -(-stop // per_block)):
            first = block * per_block
            low, high = max(start, first), min(stop, first + per_block)
            skip, take = (low - first) * columns, (high - low) * columns
            words = np.random.Philox(key=key, counter=[0, block, 0, 0]).random_raw(-(-(skip + take) // 4))
            index = words.astype("<u8", copy=False).view("<u2")[skip : skip + take]
            flat[low - start : high - start] = _normal_quantiles()[index].reshape(-1, columns)
        self._scale(name, out)

    def _scale(self, name: str, out: Floats) -> None:
        part = name.rpartition(".")[2]
        if out.ndim == 1:
            out *= np.float32(_SPREAD)
            if part.endswith("_norm"):
                out += np.float32(1)
                out[...] = _to_bf16(out)
            return
        depth = 2 * self.spec.layers if part in ("wo", "w_down") else 1
        out *= np.float32(2.0 ** round(-0.5 * math.log2(out.shape[1] * depth)))


def random_checkpoint(spec: ModelSpec, seed: int) -> RandomCheckpoint:
    """Random weights for `spec`; equal arguments give equal weights on every machine."""
    return RandomCheckpoint(spec, seed)


@cache
def _normal_quantiles() -> Floats:
    """The standard normal's quantiles at (i + 1/2) / 65536, as float32 values that bfloat16 holds."""
    normal = NormalDist()
    upper = [normal.inv_cdf((i + 0.5) / 65536) for i in range(32768, 65536)]
    positive = _to_bf16(np.array(upper, np.float32))
    return np.concatenate([-positive[::-1], positive])


def _to_bf16(values: Floats) -> Floats:
    """`values` rounded to the nearest bfloat16, ties to even; finite input."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
