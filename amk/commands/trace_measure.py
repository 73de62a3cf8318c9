"""Recording a launch for `amk trace --measure`; imported only then, because it needs a GPU and torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np

from amk.engine.admission.admission import admit, admitted
from amk.engine.backends.cuda_engine import CudaEngine
from amk.lowering.device_memory import DeviceBuffer
from amk.lowering.emit import trace_length
from amk.lowering.kernel import build
from amk.lowering.launch import Device
from amk.lowering.stream import Event
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.schedule import Schedule
from amk.trace.recording import Recording

WARM_UP = 3
ROUNDS = 9
SEED = 0


def measure(schedule: Schedule, pos: int, tokens: int) -> Recording:
    """The last of `tokens` tokens, at position `pos`, with random weights and a random cache.

    Raises AMK602 (exit 5) without a usable GPU or torch, and what `admit` and `build` raise.
    """
    admit(schedule)
    device = Device.open()
    name = device.name
    device.close()
    if importlib.util.find_spec("torch") is None:
        message = "the random weights of --measure are made with torch, which is not installed"
        raise AmkError(Diagnostic("AMK602", message, help="pip install torch"), Exit.NO_GPU)
    # torch is imported only where there is a GPU to use it on
    from amk.bench.tools.subject import Subject

    subject = Subject.random(admitted(schedule, build(schedule, trace=True).compiled.cubin), SEED)
    try:
        subject.load_cache()
        return record(schedule, subject.engine, name, pos, tokens)
    finally:
        subject.free()


def record(schedule: Schedule, engine: CudaEngine, device: str, pos: int, tokens: int) -> Recording:
    """Launch the traced kernel of `engine` and read its marks; the engine's state is left behind the last token."""
    launch, length = schedule.launch, trace_length(schedule)
    shape = (launch.workers, launch.warps, length)
    room = DeviceBuffer(engine.device, 4 * int(np.prod(shape)))
    before, engine.trace = engine.trace, room
    try:
        count = min(tokens, pos + 1, launch.max_tokens)
        start = schedule.all_at(pos - count + 1)
        token_us = _median_token_us(engine, count, lambda: engine.set_state(token=1, done=0, **start))
        marks = room.download(np.uint32, int(np.prod(shape))).reshape(shape)
    finally:
        engine.trace = before
        room.free()
    return Recording.of(schedule, device, pos, token_us, marks)


def _median_token_us(engine: CudaEngine, tokens: int, prepare: Callable[[], None]) -> float:
    """Microseconds a token; the last launch is the one that the marks are of."""
    times = []
    with Event(engine.device) as start, Event(engine.device) as end:
        for _ in range(WARM_UP + ROUNDS):
            prepare()
            start.record(engine.stream)
            engine.enqueue(tokens)
            end.record(engine.stream)
            end.synchronise()
            engine.check()
            times.append(end.milliseconds_since(start) * 1e3 / tokens)
    return float(np.median(times[WARM_UP:]))
