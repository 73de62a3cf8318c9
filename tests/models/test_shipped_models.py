"""The shipped descriptions have the parameters that their publishers count."""

from __future__ import annotations

import pytest

from amk.models.model import load_model, shipped_models

BILLIONS = {
    "smollm2-135m": 0.1345, "smollm2-360m": 0.3618, "smollm2-1.7b": 1.711, "tinyllama-1.1b": 1.100,
    "llama2-7b": 6.738, "llama2-13b": 13.016, "llama3-8b": 8.030, "llama3-70b": 70.554, "llama3.1-8b": 8.030,
    "llama3.2-1b": 1.236, "llama3.2-3b": 3.213, "mistral-7b": 7.248, "qwen2.5-0.5b": 0.494, "qwen2.5-1.5b": 1.544,
    "qwen2.5-3b": 3.086, "qwen2.5-7b": 7.616, "qwen2.5-14b": 14.770, "qwen2.5-32b": 32.764, "qwen3-0.6b": 0.596,
    "pythia-70m": 0.0704, "pythia-160m": 0.1623, "pythia-410m": 0.4053, "pythia-1b": 1.0118, "pythia-1.4b": 1.4146,
    "pythia-2.8b": 2.7752,
    "qwen3-1.7b": 1.721, "qwen3-4b": 4.022, "qwen3-8b": 8.191, "qwen3-14b": 14.768, "qwen3-32b": 32.762,
}  # fmt: skip
"""Parameters that the safetensors metadata of the model's page counts, tied ones once."""


@pytest.mark.parametrize("name", shipped_models())
def test_parameters(name: str) -> None:
    assert load_model(name).params / 1e9 == pytest.approx(BILLIONS[name], rel=1e-3)
