"""RoPE frequencies against an independent piecewise form and published values."""

import math

import numpy as np
import pytest

from amk.models.model import load_model, shipped_models
from amk.models.rope import llama3_divisors, rope_frequencies


def piecewise(frequency: float, factor: float, low: float, high: float, original: int) -> float:
    """The scaling as Meta's reference states it, by wavelength."""
    wavelength = 2 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


@pytest.mark.parametrize("name", shipped_models())
def test_frequencies(name: str) -> None:
    model = load_model(name)
    turned = model.rotary_dim or model.head_dim
    expected = [model.rope_theta ** (-2 * i / turned) for i in range(turned // 2)]
    if (scaling := model.rope_scaling) is not None:
        arguments = (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context)
        expected = [piecewise(frequency, *arguments) for frequency in expected]
    found = rope_frequencies(model)
    assert found.dtype == np.float64 and found.shape == (model.head_dim // 2,)
    assert not found[turned // 2 :].any()
    found = found[: turned // 2]
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert found[0] == 1.0 and np.all(np.diff(found) < 0)


def test_llama3_scaling_keeps_short_and_divides_long_wavelengths() -> None:
    model = load_model("llama3.1-8b")
    assert model.rope_scaling is not None
    plain = rope_frequencies(model.model_copy(update={"rope_scaling": None}))
    divisors = llama3_divisors(plain, model.rope_scaling)
    turns = 8192 * plain / (2 * np.pi)
    assert np.all(divisors[turns >= 4] == 1) and np.all(divisors[turns <= 1] == 8)
    between = divisors[(turns > 1) & (turns < 4)]
    assert len(between) > 3 and np.all((between > 1) & (between < 8))
