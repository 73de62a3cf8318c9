"""Ten thousand consecutive tokens of three models' shapes: no hang, and two passes give the same logits bit by bit."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.targets.target import Target

pytestmark = pytest.mark.gpu

TOKENS, PER_LAUNCH, CONTEXT = 10_000, 64, 2048


def digests(subject: Any) -> list[str]:
    """Hash of the logits after every launch; the position starts over when the cache is full."""
    engine, vocab = subject.engine, subject.schedule.model.vocab
    engine.set_state(token=1, pos=0, done=0)
    found = []
    for launch in range(-(-TOKENS // PER_LAUNCH)):
        pos = launch * PER_LAUNCH % CONTEXT
        engine.set_state(pos=pos)
        engine.step(PER_LAUNCH)
        found.append(hashlib.sha256(engine.read("logits", np.float32, vocab).tobytes()).hexdigest())
        assert engine.state()["pos"] == pos + PER_LAUNCH
    return found


@pytest.mark.parametrize("model", ["llama3-8b", "llama3.2-1b", "smollm2-135m"])
def test_ten_thousand_tokens_twice(model: str, torch_gpu: Device, gpu: Target) -> None:
    from tests.gpu.subjects import loaded, planned, without_torch

    with loaded(planned(load_model(model), gpu, CONTEXT)) as whole:
        subject = without_torch(whole)
        first, second = digests(subject), digests(subject)
        assert subject.engine.state()["epoch"] >= 2 * TOKENS
    assert first == second
    assert len(set(first)) > len(first) // 2, "the logits do not change from launch to launch"
