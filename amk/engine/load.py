"""Engines for a schedule and a checkpoint: the interpreter, or the GPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.session import Session
from amk.engine.checkpoints.checkpoint import Checkpoint
from amk.engine.refusal import bad_weights
from amk.interpreter.constants import constants
from amk.models.matrices import MATRICES
from amk.models.model_spec import ModelSpec
from amk.models.row_groups import TensorSource
from amk.planner.decode import plan
from amk.planner.fetches import fewest_warps
from amk.planner.formats import BF16, Formats, Layered
from amk.planner.settings import Settings
from amk.quantize.search import searched
from amk.report.diagnostic import AmkError, Diagnostic, Severity, Where
from amk.schedule_ir.sampling import Mode
from amk.schedule_ir.schedule import CacheDtype, Schedule
from amk.targets.target import load_target
from amk.weights.quantised import Quantiser

if TYPE_CHECKING:
    from amk.engine.backends.cuda_engine import CudaEngine

DeviceName = Literal["cpu", "cuda"]
Progress = Callable[[int, int], None]

CPU_WARPS = 2
"""Of a worker of a plan for the interpreter."""
EMULATED_WARPS = 4
"""For the emulator, which runs compiled code: with fewer warps a thread has too few registers."""
CPU_ROWS = 16_384
"""Vocabulary rows a worker of a plan for the interpreter: few agents are few events, shared memory bounds them."""
GPU_SLICE = 8
"""Tokens of one launch on the GPU while a text streams."""


def load(
    schedule: Schedule,
    checkpoint: Checkpoint,
    device: DeviceName = "cpu",
    progress: Progress | None = None,
    quantise: Quantiser = searched,
) -> Session:
    """A session that runs `schedule` with the weights of `checkpoint`; progress is told (bytes packed, bytes in all).

    quantise: makes the codes of matrices that the schedule does not stream in bf16 and the checkpoint does not hold so.

    The caller has the schedule's verdict. Raises AMK013 when schedule and checkpoint are of different models, AMK602
    (exit 5) without a usable GPU, AMK016 for one that chooses no tokens, and what compiling raises.
    """
    check_chooses(schedule)
    check_model(schedule.model, checkpoint)
    if device == "cpu":
        return Session(CpuEngine(schedule, checkpoint, quantise=quantise))
    return Session(gpu_engine(schedule, checkpoint, quantise, progress), GPU_SLICE)


def check_chooses(schedule: Schedule) -> None:
    """AMK016 for a schedule without output head: it reads prompts for others."""
    if schedule.headless:
        raise AmkError(Diagnostic("AMK016", f"{schedule.name} has no output head, so it chooses no tokens"))


def check_model(model: ModelSpec, checkpoint: Checkpoint) -> None:
    """AMK013 unless the two agree on everything but names and special tokens."""
    apart = {"name", "source", "bos", "eos", "max_context"}
    planned, stored = model.model_dump(exclude=apart), checkpoint.spec.model_dump(exclude=apart)
    different = [f"{k}: {planned[k]} in the schedule, {stored[k]} here" for k in planned if planned[k] != stored[k]]
    if different:
        raise bad_weights(checkpoint.path, f"the schedule is for {model.name}, the weights are not", *different)


def rounding(schedule: Schedule, checkpoint: Checkpoint) -> tuple[Diagnostic, ...]:
    """A note that names the types of stored matrices that the schedule rounds; () if it streams what is stored."""
    (stream,) = schedule.streams
    streamed = {chunk.format for name in MATRICES for chunk in stream.kinds(name)}
    exact = {"BF16"} | {str(form) for form in streamed}
    stored = {kind for name, kind in checkpoint.stored_as.items() if len(checkpoint.shapes[name]) == 2} - exact
    if not stored:
        return ()
    text = f"matrices are stored as {', '.join(sorted(stored))}, the schedule streams {', '.join(sorted(streamed))}"
    return (Diagnostic("AMK017", text, severity=Severity.NOTE, where=Where(file=str(checkpoint.path))),)


def plan_for_cpu(
    model: ModelSpec,
    positions: int,
    sampling: Mode = "greedy",
    formats: Formats | Layered = BF16,
    kv_dtype: CacheDtype = "bf16",
    batch: int = 1,
    warps: int = CPU_WARPS,
    rows: int = 1,
    live: bool = False,
    accepts: bool = False,
    tree: bool = False,
) -> Schedule:
    """A plan with few workers and a cache of `positions`, for the interpreter or the emulator. warps: at least.

    AMK011 if the model has fewer positions.
    """
    workers = max(2, -(-model.vocab // CPU_ROWS), batch * model.kv_heads)
    settings = Settings(
        warps=warps, sampling=sampling, kv_dtype=kv_dtype, batch=batch, rows=rows, live=live, accepts=accepts, tree=tree
    )
    settings = replace(settings, warps=fewest_warps(settings, model))
    return plan(model, load_target("h200"), settings=settings, formats=formats, max_context=positions, workers=workers)


def gpu_engine(
    schedule: Schedule,
    checkpoint: TensorSource,
    quantise: Quantiser,
    progress: Progress | None = None,
    **options: Any,
) -> CudaEngine:
    """The schedule on the GPU with the weights of `checkpoint`, at position 0; it is verified here.

    quantise: as in `load`; no default, because results can be compared only under one choice of codes.
    options: those of `CudaEngine`. What fails keeps no device memory.
    """
    # Imported here: the interpreter works where the driver's Python package does not.
    from amk.engine.admission.admission import started
    from amk.engine.backends.cuda_engine import CudaEngine
    from amk.engine.device_packing import pack_into
    from amk.lowering.launch import Device

    engine = CudaEngine(started(schedule), **{"device": Device.open()} | options)

    def upload_constants() -> None:
        engine.device.make_current()
        engine.upload_constants(constants(schedule, checkpoint))

    with ExitStack() as memory:
        memory.callback(engine.free)
        with ThreadPoolExecutor(1) as beside:
            constants_there = beside.submit(upload_constants)
            engine.upload_constants(pack_into(engine, checkpoint, quantise, progress))
            constants_there.result()
        engine.reset()
        memory.pop_all()
    return engine
