"""The Python interface: `amk.load`, `amk.plan`, `amk.verify`, `amk.simulate`.

Every error that a caller can cause is an `AmkError` with the diagnostics that the command line prints.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from amk.engine.backend import Backend, ForwardBackend
from amk.engine.checkpoint import Checkpoint, open_checkpoint
from amk.engine.forward import ForwardPass
from amk.engine.generation_config import generation_config, suggested_sampling, unheeded
from amk.engine.language_model import LanguageModel
from amk.engine.locate import find_checkpoint
from amk.engine.tokenizer import open_tokenizer
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.model import load_model
from amk.schedule_ir.packed_config import layout_of_directory
from amk.schedule_ir.sampling import Mode

if TYPE_CHECKING:  # the rest is imported where it is used: the device cpu needs none of it
    from amk.engine.load import Progress
    from amk.engine.schedule_backend import ScheduleBackend
    from amk.planner.formats import Formats, Layered
    from amk.schedule_ir.quantised import Quantiser
    from amk.schedule_ir.schedule import CacheDtype, Schedule
    from amk.schedule_ir.weight_format import FormatName
    from amk.simulator.predict import Prediction
    from amk.systems.builder import System
    from amk.systems.loops import LoopSystem
    from amk.systems.open_loop import LoopVerdict
    from amk.systems.verdict import Verdict as SystemVerdict
    from amk.validator.verify import Verdict

Device = Literal["cpu", "cuda", "interpreter"]
MOST_INTERPRETED = 256
"""Positions of a plan for the interpreter unless told otherwise: its cache is in memory as a whole."""


def load(
    model: str | Path,
    gpu: str | None = None,
    *,
    dtype: FormatName | None = None,
    lm_head_dtype: FormatName | None = None,
    kv_dtype: CacheDtype = "bf16",
    max_context: int | None = None,
    sampling: Mode = "top-k-top-p",
    schedule: Schedule | str | Path | None = None,
    device: Device | None = None,
) -> LanguageModel:
    """A model that is ready to answer.

    model: a directory with config.json and safetensors, a GGUF file, a repository of the Hugging Face hub
    ('owner/name', needs huggingface_hub), or a name of `amk models` whose weights lie where `amk generate` looks.
    device: 'cpu' computes with the weights as they are stored, in float32 (the default without `gpu` and `schedule`);
    'cuda' runs a schedule on the GPU; 'interpreter' runs it in numpy, slowly. gpu: the target to plan for.
    dtype, lm_head_dtype, kv_dtype: formats of the planned weights and cache. max_context: positions of the cache, in
    tokens; default: all that the model has (cpu) or that fit (cuda). sampling: what the planned schedule can draw.
    schedule: run this one instead of planning; it is proved SAFE before it runs.

    Raises AmkError: AMK010 for an unknown name, AMK012 for a model or tokenizer that amk does not run, AMK013 for
    weights that are missing or damaged, AMK011 for a plan that does not fit, AMK602 without a usable GPU.
    """
    path = find_checkpoint(str(model))
    checkpoint = open_checkpoint(path)
    tokenizer = open_tokenizer(path, checkpoint.spec.vocab)
    chosen: Device = device or ("cpu" if gpu is None and schedule is None else "cuda")
    notes = list(unheeded(path))
    if chosen == "cpu":
        if schedule is not None or gpu is not None:
            message = "the device cpu runs no schedule and plans for no GPU"
            raise AmkError(Diagnostic("AMK005", message, help="ask for the device interpreter or cuda"))
        backend: Backend = ForwardBackend(ForwardPass(checkpoint, max_context or checkpoint.spec.max_context))
    else:
        from amk.engine.load import rounding

        forms = stored_formats(path, dtype, lm_head_dtype)
        run = _given(schedule) or _planned(checkpoint, chosen, gpu, forms, kv_dtype, max_context, sampling)
        backend = schedule_backend(run, checkpoint, chosen)
        notes += rounding(run, checkpoint)
    suggested = suggested_sampling(generation_config(path))
    return LanguageModel(checkpoint.spec, tokenizer, backend, notes, suggested)


def plan(
    model: str | Path,
    gpu: str,
    *,
    dtype: FormatName | None = None,
    lm_head_dtype: FormatName | None = None,
    kv_dtype: CacheDtype = "bf16",
    max_context: int | None = None,
    preset: str = "fast",
    sampling: Mode = "greedy",
    batch: int = 1,
) -> Schedule:
    """The schedule of a model for a GPU, as `amk plan` makes it; arguments as for `load`. AMK011 if it does not fit."""
    from amk.planner.decode import plan as planned
    from amk.planner.settings import PRESETS
    from amk.schedule_ir.target import load_target

    if preset not in PRESETS:
        raise AmkError(Diagnostic("AMK005", f"preset {preset!r} is not known", help=f"one of {', '.join(PRESETS)}"))
    settings = replace(PRESETS[preset], sampling=sampling, kv_dtype=kv_dtype, batch=batch)
    wanted = stored_formats(Path(model), dtype, lm_head_dtype)
    spec = load_model(str(model))
    return planned(spec, load_target(gpu), settings=settings, wanted=wanted, max_context=max_context)


@overload
def verify(schedule: System, *, timeout_s: float | None = None) -> SystemVerdict: ...
@overload
def verify(schedule: LoopSystem, *, timeout_s: float | None = None) -> LoopVerdict: ...
@overload
def verify(schedule: Schedule | str | Path, *, timeout_s: float | None = None) -> Verdict: ...
def verify(
    schedule: Schedule | System | LoopSystem | str | Path, *, timeout_s: float | None = None
) -> Verdict | SystemVerdict | LoopVerdict:
    """SAFE, UNSAFE with a witness, or UNKNOWN; timeout_s bounds the solver. AMK001 to 009 for a malformed schedule.

    schedule: a schedule, its file, or what `amk.systems.System` or `LoopSystem` says of any other kernel, which needs
    no solver.
    """
    from amk.systems.builder import System as KernelSystem
    from amk.systems.loops import LoopSystem as KernelLoops
    from amk.validator.verify import verify as verified

    if isinstance(schedule, KernelSystem):
        from amk.systems.observed import tell
        from amk.systems.verdict import judged

        return tell(judged(schedule.flat()))
    if isinstance(schedule, KernelLoops):
        from amk.systems.observed import tell
        from amk.systems.open_loop import judged_loops

        return tell(judged_loops(schedule))

    return verified(_schedule(schedule), timeout_s=timeout_s)


def simulate(schedule: Schedule | str | Path, pos: int = 128) -> Prediction:
    """The predicted time of the token at position `pos`, in milliseconds and by phase, without a GPU."""
    from amk.simulator.predict import predict

    return predict(_schedule(schedule), pos)


def stored_formats(
    path: Path, dtype: FormatName | None = None, lm_head_dtype: FormatName | None = None
) -> Formats | Layered:
    """The format of every matrix: what is asked for, else how a directory stores its layers, else bf16."""
    from amk.planner.formats import formats

    if dtype is None and (layout := layout_of_directory(path)) is not None:
        return formats(layout.form, lm_head_dtype or "bf16")
    return formats(dtype or "bf16", lm_head_dtype)


def schedule_backend(
    schedule: Schedule,
    checkpoint: Checkpoint,
    device: Device,
    progress: Progress | None = None,
    quantise: Quantiser | None = None,
) -> ScheduleBackend:
    """The schedule, proved and certified, with the weights; progress, quantise: see `engine.load`.

    AMK016 for a schedule of several sequences.
    """
    from amk.engine.admission import admit
    from amk.engine.cpu_engine import CpuEngine
    from amk.engine.load import check_model, gpu_engine
    from amk.engine.schedule_backend import GPU_SLICE, ScheduleBackend
    from amk.quantize.search import searched

    quantise = quantise or searched
    if schedule.batch != 1:
        message = f"the schedule decodes {schedule.batch} sequences together, a text is one"
        raise AmkError(Diagnostic("AMK016", message))
    check_model(schedule.model, checkpoint)
    admit(schedule)
    if device == "interpreter":
        return ScheduleBackend(CpuEngine(schedule, checkpoint, quantise=quantise))
    return ScheduleBackend(gpu_engine(schedule, checkpoint, quantise, progress), GPU_SLICE)


def _schedule(given: Schedule | str | Path) -> Schedule:
    from amk.schedule_ir.codec import load_schedule

    return load_schedule(Path(given))[0] if isinstance(given, str | Path) else given


def _given(schedule: Schedule | str | Path | None) -> Schedule | None:
    return None if schedule is None else _schedule(schedule)


def _planned(
    checkpoint: Checkpoint,
    device: Device,
    gpu: str | None,
    forms: Formats | Layered,
    kv_dtype: CacheDtype,
    max_context: int | None,
    sampling: Mode,
) -> Schedule:
    from amk.engine.load import plan_for_cpu
    from amk.planner.decode import plan as planned
    from amk.planner.settings import PRESETS
    from amk.schedule_ir.target import load_target

    spec = checkpoint.spec
    if device == "interpreter" and gpu is None:
        positions = max_context or min(MOST_INTERPRETED, spec.max_context)
        return plan_for_cpu(spec, positions, sampling, forms, kv_dtype)
    if gpu is None:
        message = "which GPU to plan for is not known"
        raise AmkError(Diagnostic("AMK010", message, help="name it (`amk targets` lists them), or give a schedule"))
    settings = replace(PRESETS["fast"], sampling=sampling, kv_dtype=kv_dtype)
    return planned(spec, load_target(gpu), settings=settings, wanted=forms, max_context=max_context)
