"""How far logits are from a reference, and whether that is acceptable."""

from __future__ import annotations

from torch import Tensor

TOLERANCE = 1.1
"""A kernel may be this much further from the fp64 reference than torch's own bf16 forward on the same weights."""


def relative_error(value: Tensor, reference: Tensor) -> float:
    """|value - reference| / |reference| in the 2-norm; the largest of those in a batch."""
    return float(((value.double() - reference).norm(dim=-1) / reference.norm(dim=-1)).max())


def kl_divergence(value: Tensor, reference: Tensor) -> float:
    """KL(reference || value) of the softmax distributions, in nats; the largest of those in a batch."""
    p, q = reference.double().log_softmax(-1), value.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).max())


def within_tolerance(error: float, torch_error: float) -> bool:
    """False for NaN."""
    return error <= TOLERANCE * torch_error
