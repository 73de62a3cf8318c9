"""`amk.layers` and `amk.lm_head`: layers of a model, and its output head, as calls from another engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from amk.engine.backends.layer_call import Layers
    from amk.models.model_spec import ModelSpec
    from amk.models.row_groups import TensorSource
    from amk.schedule_ir.schedule import CacheDtype, Schedule
    from amk.weights.weight_format import FormatName


def layers(
    model: str | Path | ModelSpec,
    first: int,
    stop: int,
    *,
    head: bool = False,
    gpu: str | None = None,
    device: Literal["cuda", "interpreter"] = "cuda",
    weights: TensorSource | None = None,
    dtype: FormatName | None = None,
    kv_dtype: CacheDtype = "bf16",
    max_context: int | None = None,
    schedule: Schedule | None = None,
) -> Layers:
    """Layers [first, stop) of a model, ready to be called with hidden states; a GpuLayers or an InterpretedLayers.

    head: these are the last layers. Final norm and lm_head come behind them, and logits come out.
    model: a directory or GGUF file, or with `weights` a ModelSpec.
    weights: what has `tensor(name, rows=slice) -> float32 array` for names such as 'l3.wq'
        (`amk.engine.checkpoints.checkpoint` lists them). They are packed here, once.
    gpu: the target to plan for, default this machine's. device: where it runs.
    dtype, kv_dtype, max_context: as in `amk.load`.
    schedule: run this one, of the same slice, instead of planning.

    The schedule is proved SAFE. The result's `certificate` was accepted by the checker.

    Raises AmkError: AMK011 for a plan that does not fit, AMK013 for a damaged checkpoint, AMK016 for a model that has
    no slices (LayerNorm), AMK602 without a usable GPU, AMK005 for anything else. ValueError where the model has no such
    layers.
    """
    return _called(
        model,
        lambda spec: spec.sliced(first, stop, head=head),
        gpu,
        device,
        weights,
        dtype,
        kv_dtype,
        max_context,
        schedule,
    )


def lm_head(
    model: str | Path | ModelSpec,
    *,
    gpu: str | None = None,
    device: Literal["cuda", "interpreter"] = "cuda",
    weights: TensorSource | None = None,
    dtype: FormatName | None = None,
    schedule: Schedule | None = None,
) -> Layers:
    """The final norm and lm_head of a model, ready to be called with the state behind its last layer: logits come out.

    All else is as `layers` says, of which this is the call without any layer, and so without caches and position.
    """
    return _called(
        model, lambda spec: spec.sliced(spec.layers, spec.layers, head=True), gpu, device, weights, dtype, "bf16", None,
        schedule,
    )  # fmt: skip


def _called(
    model: str | Path | ModelSpec,
    sliced: Callable[[ModelSpec], ModelSpec],
    gpu: str | None,
    device: str,
    weights: TensorSource | None,
    dtype: FormatName | None,
    kv_dtype: CacheDtype,
    max_context: int | None,
    schedule: Schedule | None,
) -> Layers:
    from amk.api.devices import target_here
    from amk.api.schedules import stored_formats
    from amk.engine.checkpoints.layer_source import layer_source
    from amk.planner.decode import plan
    from amk.planner.formats import formats
    from amk.planner.settings import Settings
    from amk.report.diagnostic import AmkError, Diagnostic
    from amk.targets.target import load_target

    spec, source = _opened(model, weights)
    part = sliced(spec)
    if schedule is None:
        target = load_target(gpu or target_here())
        wanted = formats(dtype or "bf16") if weights is not None else stored_formats(Path(str(model)), dtype)
        schedule = plan(part, target, settings=Settings(kv_dtype=kv_dtype), formats=wanted, max_context=max_context)
    elif schedule.model != part:
        message = f"the schedule {schedule.name} is not of this part of {spec.name}"
        raise AmkError(Diagnostic("AMK005", message))
    return _build(schedule, layer_source(schedule.model, source), device)


def _opened(model: str | Path | ModelSpec, weights: TensorSource | None) -> tuple[ModelSpec, TensorSource]:
    from amk.engine.checkpoints.open_checkpoint import open_checkpoint
    from amk.models.model import load_model
    from amk.models.model_spec import ModelSpec
    from amk.report.diagnostic import AmkError, Diagnostic

    if isinstance(model, ModelSpec):
        if weights is None:
            raise AmkError(Diagnostic("AMK005", "a ModelSpec has no weights: give them, or a directory"))
        return model, weights
    if weights is not None:
        return load_model(str(model)), weights
    checkpoint = open_checkpoint(model)
    return checkpoint.spec, checkpoint


def _build(schedule: Schedule, source: TensorSource, device: str) -> Layers:
    from amk.quantize.search import searched

    if device == "interpreter":
        from amk.engine.admission.admission import admit
        from amk.engine.backends.layer_call import InterpretedLayers
        from amk.validator.export.of_schedule import evidence

        admit(schedule)
        return InterpretedLayers(schedule, evidence(schedule), source, searched)
    from amk.engine.backends.layer_call import GpuLayers, lent_buffers
    from amk.engine.load import gpu_engine

    return GpuLayers(gpu_engine(schedule, source, searched, lent=frozenset(lent_buffers(schedule.model))))
