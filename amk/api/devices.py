"""Which device runs a model, and what is planned for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from amk.api.card import on_the_cpu, target_of, usable_card
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.sampling import Mode

if TYPE_CHECKING:  # the rest is imported where it is used: the device cpu needs none of it
    from amk.models.model_spec import ModelSpec
    from amk.models.row_groups import TensorSource
    from amk.planner.formats import Formats, Layered
    from amk.schedule_ir.schedule import CacheDtype, Schedule
    from amk.weights.quantised import Quantiser

Device = Literal["cpu", "cuda", "interpreter", "emulator"]
WITHOUT_GPU = ("interpreter", "emulator")
"""Devices that run a schedule on the CPU."""
MOST_INTERPRETED = 256
"""Positions of a plan for them unless told otherwise: their cache is in memory as a whole."""


class Planned(NamedTuple):
    """What a plan for `load` is made from, in the words of its arguments."""

    formats: Formats | Layered
    kv_dtype: CacheDtype
    max_context: int | None
    sampling: Mode
    batch: int = 1
    rows: int = 1
    live: bool = False
    accepts: bool = False
    tree: bool = False


def chosen(gpu: str | None, scheduled: bool) -> tuple[Device, str | None, tuple[Diagnostic, ...]]:
    """The device and the target where no device is asked for, and what the caller should know about it."""
    if gpu is not None or scheduled:
        return "cuda", gpu, ()
    card = usable_card()
    if card is None:
        return "cpu", None, (on_the_cpu("there is no GPU that can be used"),)
    target = target_of(card)
    if target is None:
        return "cpu", None, (on_the_cpu(f"{card.name} ({card.arch}, {card.sms} SMs) is no target that is known"),)
    return "cuda", target.name, ()


def without_gpu(schedule: Schedule, checkpoint: TensorSource, device: Device, quantise: Quantiser) -> Any:
    if device == "emulator":
        from amk.api.emulated import EmulatorEngine

        return EmulatorEngine(schedule, checkpoint, quantise)
    from amk.engine.backends.cpu_engine import CpuEngine

    return CpuEngine(schedule, checkpoint, quantise=quantise)


def planned(spec: ModelSpec, device: Device, gpu: str | None, options: Planned) -> Schedule:
    """A plan for the model; AMK602 where no GPU is named and there is none, AMK010 where it is no known target."""
    from amk.engine.load import CPU_WARPS, EMULATED_WARPS, plan_for_cpu
    from amk.planner.decode import plan
    from amk.planner.settings import PRESETS
    from amk.targets.target import load_target

    if device in WITHOUT_GPU and gpu is None:
        positions = options.max_context or min(MOST_INTERPRETED, spec.max_context)
        warps = EMULATED_WARPS if device == "emulator" else CPU_WARPS
        return plan_for_cpu(
            spec,
            positions,
            options.sampling,
            options.formats,
            options.kv_dtype,
            options.batch,
            warps,
            options.rows,
            options.live,
            options.accepts,
            options.tree,
        )
    settings = replace(
        PRESETS["fast"],
        sampling=options.sampling,
        kv_dtype=options.kv_dtype,
        batch=options.batch,
        rows=options.rows,
        live=options.live,
        accepts=options.accepts,
        tree=options.tree,
    )
    target = load_target(gpu or target_here())
    return plan(spec, target, settings=settings, formats=options.formats, max_context=options.max_context)


def target_here() -> str:
    """The name of this machine's target; AMK602 where there is none."""
    _, target, notes = chosen(None, False)
    if target is None:
        help_text = "name a target (`amk targets` lists them) or give a schedule, or use the device cpu"
        raise AmkError(Diagnostic("AMK602", notes[0].message.partition(":")[0], help=help_text), Exit.NO_GPU)
    return target
