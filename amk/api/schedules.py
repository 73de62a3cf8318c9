"""`amk.plan`, `amk.verify` and `amk.simulate`; none of them needs weights, an engine or a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from amk.models.packed_config import layout_of_directory
from amk.report.diagnostic import AmkError, Diagnostic

if TYPE_CHECKING:  # each function imports what it needs
    from amk.planner.formats import Formats, Layered
    from amk.schedule_ir.sampling import Mode
    from amk.schedule_ir.schedule import CacheDtype, Schedule
    from amk.simulator.predict import Prediction
    from amk.systems.builder import System
    from amk.systems.loops import LoopSystem
    from amk.systems.open_loop import LoopVerdict
    from amk.systems.verdict import Verdict as SystemVerdict
    from amk.validator.verify import Verdict
    from amk.weights.weight_format import FormatName


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
    live: bool = False,
    rows: int = 1,
    accepts: bool = False,
    tree: bool = False,
    headless: bool = False,
) -> Schedule:
    """The schedule of a model for a GPU, as `amk plan` makes it; arguments as for `load`.

    live: every sequence of the batch has a position of its own, as `load` wants of a batch.
    rows: consecutive tokens of one sequence that a step reads, 1 to 64.
    accepts: rows behind a step's first are guesses, and the next step goes on behind the last right one.
    tree: rows are nodes of a tree, each of which sees its ancestors alone.
    headless: steps only read given rows into the cache.

    Raises AmkError: AMK011 if it does not fit, AMK016 for a batch and rows that cannot be, or not together, and what
    `load` raises for an unknown model, format or target.
    """
    from amk.models.model import load_model
    from amk.planner.decode import plan as planned
    from amk.planner.settings import PRESETS
    from amk.targets.target import load_target

    if preset not in PRESETS:
        raise AmkError(Diagnostic("AMK005", f"preset {preset!r} is not known", help=f"one of {', '.join(PRESETS)}"))
    step: dict[str, Any] = {"live": live, "rows": rows, "accepts": accepts, "tree": tree, "headless": headless}
    settings = replace(PRESETS[preset], sampling=sampling, kv_dtype=kv_dtype, batch=batch, **step)
    formats = stored_formats(Path(model), dtype, lm_head_dtype)
    spec = load_model(str(model))
    return planned(spec, load_target(gpu), settings=settings, formats=formats, max_context=max_context)


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

    return verified(read_schedule(schedule), timeout_s=timeout_s)


def simulate(schedule: Schedule | str | Path, pos: int | None = None) -> Prediction:
    """The predicted time of the token at position `pos`, in milliseconds and by phase, without a GPU.

    pos: default 128, or the last of a shorter cache. AMK005 for one that the cache does not have.
    """
    from amk.simulator.predict import predict

    simulated = read_schedule(schedule)
    last = simulated.kv.context - 1
    if pos is not None and not 0 <= pos <= last:
        raise AmkError(Diagnostic("AMK005", f"pos={pos}: the cache has positions 0 to {last:,}"))
    return predict(simulated, min(128, last) if pos is None else pos)


def read_schedule(source: Schedule | str | Path) -> Schedule:
    """A schedule as it is, or from its file."""
    from amk.schedule_ir.codec import load_schedule

    return load_schedule(Path(source))[0] if isinstance(source, str | Path) else source


def stored_formats(
    path: Path, dtype: FormatName | None = None, lm_head_dtype: FormatName | None = None
) -> Formats | Layered:
    """The format of every matrix: what is asked for, else how a directory stores its layers, else bf16."""
    from amk.planner.formats import formats

    if dtype is None and (layout := layout_of_directory(path)) is not None:
        return formats(layout.form, lm_head_dtype or "bf16")
    return formats(dtype or "bf16", lm_head_dtype)
