"""Rotary position embedding: the angle per position of every pair of a head."""

import numpy as np
from numpy.typing import NDArray

from amk.models.model_spec import ModelSpec, RopeScaling


def rope_frequencies(model: ModelSpec) -> NDArray[np.float64]:
    """Radians per position of pair i of a head, shape [head_dim // 2]: theta^(-2i / rotary_dim), then llama3 scaling.

    Pair i is elements (i, i + head_dim / 2) of a head of q and k in rotate-half order. Pairs from rotary_dim / 2 on, of
    a head that is rotated in part, are turned by nothing. Source of the base: Su et al., RoFormer (arXiv 2104.09864),
    section 3.2.2.
    """
    turned = model.rotary_dim or model.head_dim
    exponents = np.arange(0, turned, 2, dtype=np.float64) / turned
    base: NDArray[np.float64] = model.rope_theta**-exponents
    if model.rope_scaling is not None:
        base = base / llama3_divisors(base, model.rope_scaling)
    return np.pad(base, (0, model.head_dim // 2 - base.size))


def llama3_divisors(frequencies: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """What each unscaled frequency is divided by, same shape: 1 for short wavelengths, `factor` for long ones.

    With r = original_context * frequency / 2 pi (turns within the original context): r > high_freq_factor keeps the
    frequency, r < low_freq_factor divides it by `factor`, and between the two the frequency itself is interpolated
    linearly in r. Source: Meta's llama-models, `apply_scaling` of the Llama 3.1 reference; the same function is
    rope type `llama3` in Hugging Face transformers.
    """
    turns = scaling.original_context * frequencies / (2 * np.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    divisors: NDArray[np.float64] = 1.0 / (kept + (1.0 - kept) / scaling.factor)
    return divisors
