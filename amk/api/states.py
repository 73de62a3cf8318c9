"""`amk.load(..., states=True)`: a model as two schedules, between which hidden states are the host's."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from amk.api.devices import WITHOUT_GPU, Device, Planned, planned, without_gpu
from amk.engine.backends.forward_backend import ForwardBackend
from amk.report.diagnostic import AmkError, Diagnostic

if TYPE_CHECKING:
    from amk.engine.checkpoints.checkpoint import Checkpoint
    from amk.engine.load import Progress
    from amk.schedule_ir.schedule import Schedule
    from amk.weights.quantised import Quantiser


def planned_parts(
    checkpoint: Checkpoint, device: Device, gpu: str | None, options: Planned
) -> tuple[Schedule, Schedule]:
    """Plans of all layers and of the output head. AMK016 for a model without slices (LayerNorm), AMK011 unless the
    device's memory holds both."""
    spec = checkpoint.spec
    options = options._replace(sampling="greedy")  # the host chooses
    layers = planned(spec.sliced(0, spec.layers), device, gpu, options)
    forms = options.formats[0][1] if isinstance(options.formats, tuple) else options.formats
    head = planned(spec.sliced(spec.layers, spec.layers, head=True), device, gpu, options._replace(formats=forms))
    needed = sum(b.bytes for schedule in (layers, head) for b in schedule.buffers if b.space == "global")
    if needed > layers.target.hbm_bytes:
        message = f"layers and output head need {needed:,} bytes, {layers.target.name} has {layers.target.hbm_bytes:,}"
        raise AmkError(Diagnostic("AMK011", message, help="ask for a smaller max_context"))
    return layers, head


def states_backend(
    parts: tuple[Schedule, Schedule],
    checkpoint: Checkpoint,
    device: Device,
    progress: Progress | None = None,
    quantise: Quantiser | None = None,
) -> ForwardBackend:
    """Both schedules, proved and certified, with their weights; progress, quantise: see `load`."""
    from amk.engine.backends.slice_pass import SlicePass
    from amk.quantize.search import searched

    with ExitStack() as memory:
        engines = list[Any]()
        for part in parts:
            engines.append(_engine(part, checkpoint, device, progress, quantise or searched))
            memory.callback(engines[-1].free)
        layers, head = engines
        backend = ForwardBackend(SlicePass(layers, head, checkpoint))
        memory.pop_all()
    return backend


def _engine(
    schedule: Schedule, checkpoint: Checkpoint, device: Device, progress: Progress | None, quantise: Quantiser
) -> Any:
    from amk.engine.admission.admission import admit
    from amk.engine.checkpoints.layer_source import layer_source
    from amk.engine.load import gpu_engine

    source = layer_source(schedule.model, checkpoint)
    if device in WITHOUT_GPU:
        admit(schedule)
        return without_gpu(schedule, source, device, quantise)
    return gpu_engine(schedule, source, quantise, progress)
