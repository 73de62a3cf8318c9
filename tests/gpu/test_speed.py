"""Speed beside torch's operations in a CUDA graph, measured in turn in this process. Medians; see amk/bench."""

from __future__ import annotations

import pytest

from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.planner.settings import FAST, NAIVE, Settings
from amk.targets.target import Target

pytestmark = pytest.mark.gpu

POSITION = 128


@pytest.mark.parametrize(("settings", "most"), [(NAIVE, 1.3), (FAST, 0.75)], ids=["naive plan", "fast plan"])
def test_llama_1b_against_a_cuda_graph(settings: Settings, most: float, torch_gpu: Device, gpu: Target) -> None:
    """The naive plan is worth beating: at most 1.3 times torch's time. The fast one is well below it."""
    from amk.bench.table.decode_bench import bench_position
    from amk.bench.table.measurement import measurement
    from tests.gpu.subjects import loaded, planned

    if gpu.name not in ("h100", "h200"):
        pytest.skip(f"the ratios are stated for an H100 or H200, this is {torch_gpu.name}")
    with loaded(planned(load_model("llama3.2-1b"), gpu, 512, settings)) as subject:
        row = bench_position(subject, measurement(subject.schedule, POSITION, baselines=("cublas-graph",)).key)
    assert row.correct, row
    ratio = row.times.ms / row.baselines["cublas-graph"].ms
    assert ratio <= most, f"{row.times.ms:.3f} ms, torch {row.baselines['cublas-graph'].ms:.3f} ms"
    assert row.floor_ms < row.times.ms, "faster than the bytes can be read: something was not done"
