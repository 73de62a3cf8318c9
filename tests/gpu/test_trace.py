"""A launch recorded on the GPU: every warp's marks rise, cover the token, and are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amk.lowering.launch import Device
from amk.report.timeline_html import html
from amk.targets.target import Target
from amk.trace.from_recording import of_recording
from amk.trace.phases import Measured
from amk.trace.recording import read_recording
from tests.tiny import PLAIN

pytestmark = pytest.mark.gpu


def test_a_recorded_token_is_complete_and_drawn(torch_gpu: Device, gpu: Target, tmp_path: Path) -> None:
    from amk.commands.trace_measure import measure
    from tests.gpu.subjects import planned

    schedule = planned(PLAIN, gpu, 512)
    recording = measure(schedule, 100, 4)
    measured = Measured(schedule, recording)
    longest = 0.0
    for worker in range(schedule.launch.workers):
        for warp in range(schedule.launch.warps):
            lengths = measured.lengths(worker, warp)
            assert len(lengths) and (lengths >= 0).all()
            longest = max(longest, float(lengths.sum()))
    # a token of microseconds at a clock between 0.3 and 3 GHz
    assert 1 / 3000 < measured.us_per_cycle < 1 / 300
    assert np.isclose(longest, recording.token_us, rtol=0.2)
    file = tmp_path / "raw.json"
    file.write_text(recording.model_dump_json())
    assert "gemv lm_head" in html(of_recording(schedule, read_recording(file, schedule)))
