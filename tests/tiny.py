"""Small models that exercise every variant: plain, ragged (odd vocabulary, one kv head), with bias, with QK norm."""

from __future__ import annotations

from amk.models.model_spec import ModelSpec


def tiny(name: str = "tiny", **changes: object) -> ModelSpec:
    """Two layers; anything may be changed by keyword."""
    fields: dict[str, object] = {
        "name": name, "source": "made for tests", "layers": 2, "hidden": 128, "ffn": 256, "heads": 4, "kv_heads": 2,
        "head_dim": 64, "vocab": 512, "max_context": 16384, "rms_eps": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip
    return ModelSpec.model_validate(fields | changes)


PLAIN = tiny()
RAGGED = tiny("tiny-ragged", hidden=192, ffn=352, heads=3, kv_heads=1, vocab=331, tied_embeddings=True)
BIASED = tiny("tiny-bias", heads=6, kv_heads=2, qkv_bias=True)
NORMED = tiny("tiny-norm", head_dim=128, heads=2, kv_heads=1, qk_norm=True)
VARIANTS = (PLAIN, RAGGED, BIASED, NORMED)
PAIRED = tiny("tiny-paired", hidden=512, ffn=1536, heads=8)
"""Of codes of four bits all products take blocks of x in pairs; in `RAGGED` none does, in `PLAIN` some do."""
