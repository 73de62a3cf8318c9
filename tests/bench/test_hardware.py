"""Which GPU a record speaks of."""

import pytest

from amk.bench.tools.hardware import smi_name


def test_a_process_that_sees_one_gpu_of_many_asks_for_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert smi_name(0) == "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert (smi_name(0), smi_name(1)) == ("3", "GPU-5")
