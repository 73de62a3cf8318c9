"""Schedules that `verify` rejects, run all the same: how many really hang or corrupt.

Bypasses admission (`tests.gpu.broken`), which nothing in the product can. Every run is under the watchdog. What neither
hangs nor corrupts here is no false reject: its witness replays, the hardware just did not do it this time.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amk.engine.admission.admission import AdmittedKernel
from amk.lowering.launch import Device
from amk.report.diagnostic import AmkError
from amk.targets.target import Target
from tests.gpu.broken import TOKENS, Broken, good_kernel, sample, smuggled

pytestmark = pytest.mark.gpu

COUNT, PARTS = 50, 5
STALL_NS = 200_000_000
REPEATS = 3
SEED = 31


def _run(kernel: AdmittedKernel) -> tuple[tuple[int, ...], bytes]:
    """Tokens and logits of one launch, scratch poisoned before; AmkError AMK604 if it hangs."""
    import torch

    from amk.bench.tools.subject import Subject, no_prompt

    subject = Subject.random(kernel, SEED)
    try:
        subject.engine.stall_ns = STALL_NS
        subject.engine.poison()
        no_prompt(subject.engine)
        subject.engine.set_state(token=1, pos=0, done=0)
        tokens = subject.engine.step(TOKENS)
        return tuple(tokens), subject.engine.read("logits", np.float32, kernel.schedule.model.vocab).tobytes()
    finally:
        subject.free()
        del subject
        gc.collect()
        torch.cuda.empty_cache()


def _outcome(broken: Broken) -> str:
    expected = _run(good_kernel(broken))
    for place in broken.places or (None,):
        kernel = smuggled(broken.schedule, place)
        for _ in range(REPEATS):
            try:
                if _run(kernel) != expected:
                    return "corrupted"
            except AmkError as error:
                if [d.code for d in error.diagnostics] != ["AMK604"]:
                    raise
                return "hung"
    return "nothing seen"


@pytest.mark.parametrize("part", range(PARTS))
def test_rejected_schedules_really_hang_or_corrupt(
    part: int, torch_gpu: Device, gpu: Target, record_property: Callable[[str, Any], None]
) -> None:
    """A part has four of the twenty classes, so that races are in each and deadlocks in most."""
    if gpu.arch != "sm_90a":
        pytest.skip("the sample is planned for sm_90a")
    seen: Counter[str] = Counter()
    quiet = []
    for broken in sample(COUNT // PARTS, part, PARTS):
        found = _outcome(broken)
        seen[f"{broken.kind}: {found}"] += 1
        quiet += [f"{broken.seed} ({broken.code})"] if found == "nothing seen" else []
    for name, count in sorted(seen.items()):
        record_property(name, count)
    record_property("nothing seen in", quiet)
    assert sum(seen.values()) == COUNT // PARTS
    assert seen["deadlock: hung"] == sum(n for name, n in seen.items() if name.startswith("deadlock"))
    assert sum(n for name, n in seen.items() if name.endswith("corrupted")) > 0


def test_the_sample_has_every_kind(gpu: Target) -> None:
    kinds = {broken.kind for part in (1, 2) for broken in sample(COUNT // PARTS, part, PARTS)}
    assert kinds == {"deadlock", "race", "stale"}
