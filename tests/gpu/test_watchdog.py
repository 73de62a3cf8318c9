"""A schedule that deadlocks ends with a report naming the counter, within seconds; the GPU stays usable."""

from __future__ import annotations

import time

import pytest

from amk.lowering.launch import Device
from amk.report.diagnostic import AmkError
from amk.targets.target import Target
from tests.damage import raised_threshold
from tests.tiny import PLAIN

pytestmark = pytest.mark.gpu

STALL_NS = 300_000_000
LIMIT_SECONDS = 10.0


@pytest.mark.parametrize("counter", ["qkv", "attn", "h_mid", "act", "h_out", "best"])
def test_a_raised_threshold_is_reported(counter: str, torch_gpu: Device, gpu: Target) -> None:
    from tests.gpu.broken import smuggled
    from tests.gpu.subjects import loaded, planned, running

    good = planned(PLAIN, gpu, 256)
    with running(smuggled(raised_threshold(good, counter))) as subject:
        subject.engine.stall_ns = STALL_NS
        subject.engine.set_state(token=1, pos=0, done=0)
        began = time.monotonic()
        with pytest.raises(AmkError, match="AMK604") as caught:
            subject.engine.step(1)
        assert time.monotonic() - began < LIMIT_SECONDS
    facts = [fact.text for fact in caught.value.diagnostics[0].facts]
    assert any(f"counter {counter}[" in text and "stalled" in text for text in facts), facts
    with loaded(good) as subject:
        subject.engine.set_state(token=1, pos=0, done=0)
        assert len(subject.engine.step(4)) == 4
