"""Texts that are longer than the tags of a schedule tell apart, judged by a forward pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from amk.adversary.neighbourhood.bases import base
from amk.engine.backends.cuda_engine import CudaEngine
from amk.judges.judge import DEVICE_TOLERANCE, Ruling, judged
from amk.judges.request import Request
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import verify
from tests.adversarial.emulated import Kernels
from tests.engine.hosted_kernel import HostedKernel

TAGGED = (
    "tagged", "flags and fences, bias", "drawing", "batch of codes", "layers of two kinds", "splits reduced",
    "LayerNorm, two layers", "rows", "rows that accept", "rows, columns divided",
)  # fmt: skip
FALLING = ("layers of two kinds", "rows", "rows, columns divided")
"""Whose loops have fewer layers than the model, or one: a tag may fall from layer to layer."""
TOKENS, LAUNCH = 12, 2
STEEPEST = 2**31 - 1
"""Of a tag: it is below 2^32 - 1 for two tokens."""


def printed(schedule: Schedule) -> str:
    ptx = Kernels().ptx(schedule)
    assert ptx is not None
    return ptx


def short_lived(name: str, edit: Callable[[dict[str, int]], dict[str, int]]) -> Schedule:
    """The schedule with other tags, launched for so few tokens that it is SAFE."""
    document: dict[str, Any] = json.loads(json.dumps(base(name)))
    document["launch"]["max_tokens"] = LAUNCH
    for buffer in document["buffers"]:
        if buffer["name"] == "output":
            buffer["shape"][0] = LAUNCH
        if buffer["tag"]:
            buffer["tag"] = edit(buffer["tag"])
    schedule = Schedule.model_validate_json(json.dumps(document))
    verdict = verify(schedule)
    assert verdict.status == "SAFE", [d.code for d in verdict.diagnostics]
    return schedule


def ruling(schedule: Schedule, kernel: HostedKernel, order: str) -> Ruling:
    steps = min(TOKENS, schedule.kv.context // schedule.rows)
    length = schedule.rows * steps if schedule.rows > 1 and not schedule.accepts else 2
    texts = tuple(
        tuple((7 + 13 * i + 5 * s) % schedule.model.vocab for i in range(length)) for s in range(schedule.batch)
    )
    launches = (1,) + (LAUNCH,) * ((steps - 1) // LAUNCH)
    return judged(schedule, Request(texts, launches), order, kernel, DEVICE_TOLERANCE)


def steep(tag: dict[str, int]) -> dict[str, int]:
    return tag | {"t": STEEPEST}


def falling(tag: dict[str, int]) -> dict[str, int]:
    return {"t": STEEPEST, "l": -1, "1": 1} if "l" in tag else steep(tag)


CASES = [(name, steep) for name in TAGGED] + [(name, falling) for name in FALLING]


@pytest.mark.turns(3)
@pytest.mark.parametrize(("name", "edit"), CASES)
def test_a_text_goes_on_when_epochs_begin_again(name: str, edit: Callable[[dict[str, int]], dict[str, int]]) -> None:
    kernel = HostedKernel(printed)
    found = ruling(short_lived(name, edit), kernel, "priorities:1")
    assert found.status == "not refuted", found
    assert kernel.restarts


def counters_stay(engine: CudaEngine) -> None:
    engine._start_counters = lambda: None  # type: ignore[method-assign]


def epoch_stays(engine: CudaEngine) -> None:
    start = engine._start_epochs

    def wrong(stream: Any) -> None:
        epoch = engine.state()["epoch"]
        start(stream)
        engine.set_state(epoch=epoch)

    engine._start_epochs = wrong  # type: ignore[method-assign]


def cache_goes(engine: CudaEngine) -> None:
    start = engine._start_epochs

    def wrong(stream: Any) -> None:
        start(stream)
        engine.buffers["k_cache"].fill(0, stream)

    engine._start_epochs = wrong  # type: ignore[method-assign]


@pytest.mark.parametrize("broken", [counters_stay, epoch_stays, cache_goes])
def test_a_wrong_restart_is_seen(broken: Callable[[CudaEngine], None]) -> None:
    found = ruling(short_lived("flags and fences, bias", steep), HostedKernel(printed, broken), "priorities:1")
    assert found.status == "refuted", found
