"""`amk.load`: files, a device, and a model that is ready to answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from numbers import Integral
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypedDict, get_args

from amk.api.card import has_driver, usable_card
from amk.api.devices import WITHOUT_GPU, Device, Planned, chosen, planned, without_gpu
from amk.engine.backends.backend import Backend
from amk.engine.backends.forward import ForwardPass
from amk.engine.backends.forward_backend import ForwardBackend
from amk.engine.checkpoints.checkpoint import Checkpoint, unread
from amk.engine.checkpoints.locate import find_checkpoint
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.generation.draft import Draft, check_same_tokens
from amk.engine.generation.generation_config import generation_config, suggested_sampling, unheeded
from amk.engine.generation.language_model import LanguageModel
from amk.engine.generation.speculation import GUESSES, Method, Speculating, speculating
from amk.engine.tokenizers.open_tokenizer import begin_tokenizer
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.prefill.reader import Prefill, prompts_of
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.sampling import MODES, Mode
from amk.weights.weight_format import FORMATS, FormatName

if TYPE_CHECKING:  # the rest is imported where it is used: the device cpu needs none of it
    from amk.engine.backends.live_backend import LiveBackend
    from amk.engine.backends.schedule_backend import ScheduleBackend
    from amk.engine.load import Progress
    from amk.planner.formats import Formats, Layered
    from amk.schedule_ir.schedule import CacheDtype, Schedule
    from amk.weights.bfloat import F32
    from amk.weights.quantised import Quantised, Quantiser
    from amk.weights.weight_format import WeightFormat

Load = Callable[[], Backend]
"""Reads the weights of a model."""
MOST_TEXTS = 16
"""Computed at once."""
_VALUES: dict[str, Collection[str]] = {
    "device": get_args(Device), "prefill": get_args(Prefill), "sampling": MODES, "kv_dtype": ("bf16", "fp8"),
    "dtype": FORMATS, "lm_head_dtype": FORMATS,
}  # fmt: skip
"""What arguments of `load` may say."""
_ON_GPU = (
    "amk.engine.admission.admission", "amk.engine.backends.cuda_engine", "amk.engine.device_packing", "amk.engine.load",
    "amk.engine.backends.live_backend", "amk.engine.backends.rows_backend",
)  # fmt: skip
"""Modules that run a schedule there."""


class _How(TypedDict):
    """What every schedule is loaded with: see `load`."""

    device: Device
    progress: Progress | None
    quantise: Quantiser | None


@dataclass(frozen=True)
class Files:
    """A model's files, opened: weights are read when they are needed."""

    path: Path
    checkpoint: Checkpoint
    tokenizer: Tokenizer


def open_files(model: str | Path) -> Files:
    """Find and open what `load` is given. AMK010, AMK012 and AMK013 as there, but for the vocabulary, which is still
    being read."""
    path = find_checkpoint(str(model))
    checkpoint = open_checkpoint(path)
    return Files(path, checkpoint, begin_tokenizer(path, checkpoint.spec.vocab))


def load(
    model: str | Path | Files,
    gpu: str | None = None,
    *,
    dtype: FormatName | None = None,
    lm_head_dtype: FormatName | None = None,
    kv_dtype: CacheDtype = "bf16",
    max_context: int | None = None,
    sampling: Mode = "top-k-top-p",
    schedule: Schedule | str | Path | None = None,
    device: Device | None = None,
    formats: Formats | Layered | None = None,
    progress: Progress | None = None,
    quantise: Quantiser | None = None,
    prefill: Prefill = "auto",
    speculate: Method | None = None,
    draft_tokens: int = GUESSES,
    draft_steps: int = 1,
    draft_branches: int = 1,
    draft: str | Path | Files | None = None,
    batch: int = 1,
    states: bool = False,
) -> LanguageModel:
    """A model that is ready to answer.

    model: a directory with config.json and safetensors, a GGUF file, a repository of the Hugging Face hub
        ('owner/name', needs huggingface_hub), or a name of `amk models` whose weights lie where `amk generate` looks.
    gpu: the target to plan for. Default: this machine's card. Where there is none, the device is 'cpu', and a note says
        so.
    dtype, lm_head_dtype, kv_dtype: formats of the planned weights and cache.
    max_context: positions of the cache, in tokens. Default: all that the model has (cpu) or that fit (cuda).
    sampling: what the planned schedule can draw.
    schedule: run this one instead of planning. It is proved SAFE before it runs.
    device: 'cuda' runs a schedule on the GPU. 'cpu' computes in float32 with the weights as they are stored.
        'interpreter' runs the schedule in numpy, 'emulator' its compiled code; both are slow.
    formats: of every matrix, in place of `dtype` and `lm_head_dtype`.
    progress: called with (bytes packed, bytes in all).
    quantise: makes codes that the checkpoint does not hold.
    prefill: what reads prompts on the device cuda. 'kernel': the schedule, token by token. 'torch': matrix products of
        torch, whose cache differs by the rounding of bf16. 'rows': a second schedule of up to 64 tokens a step. It
        needs no torch, but memory for weights of its own; where these are codes, its cache differs likewise. 'auto':
        torch where it can, for 6 tokens and more.
    speculate: guess up to `draft_tokens` tokens and verify them in one pass, which changes no answer. 'lookup' guesses
        from the text. 'draft' asks the model `draft`, which is smaller, has the same tokens and runs on the same
        device. The planned schedule then has a row more than `draft_tokens`.
    draft_steps: steps of guesses a launch, where a schedule runs. Only 'lookup' knows more than one; the device then
        accepts guesses between steps.
    draft_branches: ways in which 'lookup' guesses what comes next, `draft_tokens` in all of them. A pass verifies all.
    batch: texts that are computed at once, each for itself, 1 to 16. A schedule that is planned for more than one
        verifies no guesses. One that is passed as `schedule` says itself how many it computes.
    states: the model also returns hidden states and takes embeddings, as the device cpu always does. All layers and
        the output head are schedules of their own, launched once a token. The host chooses, so answers take longer. One
        text at a time.

    Raises AmkError: AMK005 for an unknown argument, AMK010 for an unknown name, AMK011 for a plan that does not fit or
    more positions than the model has, AMK012 for a model or tokenizer that amk does not run, AMK013 for weights that
    are missing or damaged, AMK019 where torch is to read prompts and cannot, AMK602 without a usable GPU. What raises
    keeps no device memory.
    """
    words = {"device": device, "prefill": prefill, "sampling": sampling, "kv_dtype": kv_dtype}
    _check_words(**words, dtype=dtype, lm_head_dtype=lm_head_dtype)
    numbers = {"draft_tokens": draft_tokens, "draft_steps": draft_steps, "draft_branches": draft_branches}
    _check_whole(max_context=max_context, batch=batch, **numbers)
    on_gpu = device in (None, "cuda") and has_driver()
    if on_gpu:
        Thread(target=usable_card, daemon=True).start()  # its context
    files = model if isinstance(model, Files) else open_files(model)
    if on_gpu:  # while the driver makes the context
        for module in _ON_GPU:
            import_module(module)
        import_module("amk.engine.admission.admissions").hashed()
    notes = [*unheeded(files.path), *unread(files.checkpoint)]
    if device is None:
        device, gpu, about_device = chosen(gpu, schedule is not None)
        notes += about_device
    cache = None if kv_dtype == "bf16" else kv_dtype
    _check(device, batch, schedule, gpu, dtype, lm_head_dtype, formats, cache)
    _check_device(device, prefill, states, alone=batch == 1 and schedule is None)
    models = [files] if draft is None else [files, _draft_files(draft, files)]
    speculate = "draft" if speculate is None and draft is not None else speculate
    guesses = draft_tokens, draft_steps, draft_branches
    if speculate is None and guesses != (GUESSES, 1, 1):
        message = "draft_tokens, draft_steps and draft_branches are for guesses, and nothing is to guess"
        raise AmkError(Diagnostic("AMK005", message, help="speculate='lookup', or a model as `draft`"))
    if device == "cpu":
        loads = _without_schedules(models, max_context, batch)
    else:
        from amk.api.schedules import stored_formats
        from amk.engine.load import rounding

        forms = formats if formats is not None else stored_formats(files.path, dtype, lm_head_dtype)
        wanted = Planned(forms, kv_dtype, max_context, sampling, batch, live=batch > 1)
        how: _How = {"device": device, "progress": progress, "quantise": _behind_tokenizer(files, quantise)}
        if states:
            schedules, loads = _in_parts(models, gpu, wanted, how)
        else:
            schedules, loads = _whole(models, gpu, wanted, schedule, guesses if speculate else None, prefill, how)
        notes += rounding(schedules[0], files.checkpoint)
    suggested = suggested_sampling(generation_config(files.path))
    with ExitStack() as memory:
        backends = list[Backend]()
        for load_one in loads:
            backends.append(load_one())
            memory.callback(backends[-1].free)
        guessing = None if speculate is None else _guessing(models, backends, speculate, *guesses)
        files.tokenizer.check(files.checkpoint.spec.vocab)
        memory.pop_all()
    return LanguageModel(files.checkpoint.spec, files.tokenizer, backends[0], notes, suggested, guessing)


def _behind_tokenizer(files: Files, quantise: Quantiser | None) -> Quantiser:
    """`quantise`, of the same name, which makes no codes before the tokenizer is known to be usable: all of them can
    take minutes."""
    from amk.quantize.search import searched

    checked, make = cache(partial(files.tokenizer.check, files.checkpoint.spec.vocab)), quantise or searched

    @wraps(make)
    def codes(rows: F32, form: WeightFormat) -> Quantised:
        checked()
        return make(rows, form)

    return codes


def _check_words(**options: str | None) -> None:
    """AMK005 for one that is not known."""
    for name, word in options.items():
        if word is not None and word not in _VALUES[name]:
            message = f"{name}={word!r} is not known"
            raise AmkError(Diagnostic("AMK005", message, help=f"one of {', '.join(_VALUES[name])}"))


def _check_whole(**options: int | None) -> None:
    """AMK005 for what is no whole number; its size is judged where it matters, but for positions."""
    for name, number in options.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, Integral)):
            raise AmkError(Diagnostic("AMK005", f"{name}={number!r} is no whole number"))
    if (positions := options["max_context"]) is not None and positions < 1:
        raise AmkError(Diagnostic("AMK005", f"max_context={positions} is no number of positions"))


def _check(device: Device, batch: int, *planned_for: object) -> None:
    """planned_for: what only a schedule heeds, None where nothing is asked for."""
    if not 1 <= batch <= MOST_TEXTS:
        raise AmkError(Diagnostic("AMK016", f"a batch has 1 to {MOST_TEXTS} texts, {batch} were asked for"))
    if device == "cpu" and any(asked is not None for asked in planned_for):
        message = "the device cpu computes with the weights as they are stored, without a schedule or a GPU"
        raise AmkError(Diagnostic("AMK005", message, help="ask for the device interpreter or cuda"))


def _check_device(device: Device, prefill: Prefill, states: bool, alone: bool) -> None:
    """AMK005 or AMK016 for what the device does not do. alone: one text, by schedules that are planned for it."""
    if device != "cuda" and prefill != "auto":
        message = f"prefill={prefill!r} is for the device cuda: the device {device} reads prompts itself"
        raise AmkError(Diagnostic("AMK005", message))
    if states and device != "cpu" and not alone:
        message = "hidden states are told of one text at a time, by schedules that are planned for them"
        raise AmkError(Diagnostic("AMK016", message, help="leave out `batch` and `schedule`, or use the device cpu"))


def _without_schedules(models: Sequence[Files], max_context: int | None, batch: int) -> Sequence[Load]:
    """Plain forward passes of a model, and of its draft for no more positions than that has."""
    spec = models[0].checkpoint.spec
    positions = max_context or spec.max_context
    if positions > spec.max_context:
        message = f"{spec.name} has {spec.max_context:,} positions, {positions:,} were asked for"
        raise AmkError(Diagnostic("AMK011", message))
    spans = [positions, *(min(positions, draft.checkpoint.spec.max_context) for draft in models[1:])]

    def passes(of: Files, span: int) -> Backend:
        return ForwardBackend(ForwardPass(of.checkpoint, span), batch)

    return [partial(passes, of, span) for of, span in zip(models, spans, strict=True)]


def _in_parts(
    models: Sequence[Files], gpu: str | None, options: Planned, how: _How
) -> tuple[Sequence[Schedule], Sequence[Load]]:
    """For each model the plan of its layers, and what loads that and the plan of its output head."""
    from amk.api.states import planned_parts, states_backend

    parts = [planned_parts(of.checkpoint, how["device"], gpu, options) for of in models]
    loads = [partial(states_backend, part, of.checkpoint, **how) for part, of in zip(parts, models, strict=True)]
    return [layers for layers, _ in parts], loads


def _whole(
    models: Sequence[Files],
    gpu: str | None,
    options: Planned,
    schedule: Schedule | str | Path | None,
    guesses: tuple[int, int, int] | None,
    prefill: Prefill,
    how: _How,
) -> tuple[Sequence[Schedule], Sequence[Load]]:
    """For each model its schedule, and what loads that. guesses: `draft_tokens`, `draft_steps` and `draft_branches`."""
    tokens, steps, branches = guesses or (0, 1, 1)
    runs = _runs(models, how["device"], gpu, options._replace(accepts=steps > 1, tree=branches > 1), schedule, tokens)
    each = partial(schedule_backend, prefill=prefill, steps=steps, **how)
    return runs, [partial(each, run, of.checkpoint) for run, of in zip(runs, models, strict=True)]


def _guessing(
    models: Sequence[Files], backends: Sequence[Backend], speculate: Method, tokens: int, steps: int, branches: int
) -> Speculating:
    """What guesses, with the draft if there is one."""
    known = min(each.checkpoint.spec.vocab for each in models)
    draft = Draft(backends[1], known) if models[1:] else None
    return speculating(backends[0], speculate, tokens, draft, steps, branches)


def _runs(
    models: Sequence[Files],
    device: Device,
    gpu: str | None,
    options: Planned,
    schedule: Schedule | str | Path | None,
    guesses: int,
) -> list[Schedule]:
    """What runs a model, which verifies so many guesses, and its draft if there is one."""
    from amk.api.schedules import read_schedule

    choice = options.sampling if options.accepts else "greedy"  # else the host chooses
    verifying = options._replace(sampling=choice, rows=1 + guesses) if guesses else options
    run = planned(models[0].checkpoint.spec, device, gpu, verifying) if schedule is None else read_schedule(schedule)
    return [run, *(_draft_plan(draft, run, device, gpu) for draft in models[1:])]


def _draft_files(draft: str | Path | Files, files: Files) -> Files:
    """AMK012 unless it has the tokens of the model; else as `open_files`."""
    smaller = draft if isinstance(draft, Files) else open_files(draft)
    for each in (files, smaller):
        each.tokenizer.check(each.checkpoint.spec.vocab)
    check_same_tokens(files.tokenizer, smaller.tokenizer)
    return smaller


def _draft_plan(draft: Files, run: Schedule, device: Device, gpu: str | None) -> Schedule:
    """A plan for the draft of what `run` verifies, on the same device. AMK011 unless its memory holds both.

    It can draw whatever is asked for, because the host chooses so for `run`.
    """
    from amk.api.schedules import stored_formats

    positions = min(run.kv.context, draft.checkpoint.spec.max_context)
    wanted = Planned(stored_formats(draft.path), "bf16", positions, "top-k-top-p")
    schedule_of_draft = planned(draft.checkpoint.spec, device, gpu, wanted)
    needed = sum(b.bytes for schedule in (run, schedule_of_draft) for b in schedule.buffers if b.space == "global")
    if needed > run.target.hbm_bytes:
        message = f"model and draft need {needed:,} bytes, {run.target.name} has {run.target.hbm_bytes:,}"
        raise AmkError(Diagnostic("AMK011", message, help="ask for a smaller max_context"))
    return schedule_of_draft


def schedule_backend(
    schedule: Schedule,
    checkpoint: Checkpoint,
    device: Device,
    progress: Progress | None = None,
    quantise: Quantiser | None = None,
    prefill: Prefill = "auto",
    steps: int = 1,
) -> ScheduleBackend | LiveBackend:
    """The schedule, proved and certified, with the weights; progress, quantise, prefill: see `load`.
    steps: its draft_steps.

    AMK016 for a schedule of several sequences that are all at one position, or without output head.
    """
    from amk.engine.admission.admission import admit
    from amk.engine.backends.live_backend import LiveBackend
    from amk.engine.backends.rows_backend import RowsBackend
    from amk.engine.backends.schedule_backend import OwnMemory, ScheduleBackend
    from amk.engine.backends.step_prompts import step_prompts
    from amk.engine.load import check_chooses, check_model, gpu_engine
    from amk.quantize.search import searched

    quantise = quantise or searched
    if schedule.batch != 1 and not schedule.live:
        message = f"the schedule decodes {schedule.batch} sequences together, a text is one"
        raise AmkError(Diagnostic("AMK016", message, help="amk plan --batch N --live"))
    check_chooses(schedule)
    check_model(schedule.model, checkpoint)
    with ExitStack() as memory:
        prompts = None
        if device in WITHOUT_GPU:
            admit(schedule)
            engine = without_gpu(schedule, checkpoint, device, quantise)
            memory.callback(engine.free)
        else:
            engine = gpu_engine(schedule, checkpoint, quantise, progress)
            memory.callback(engine.free)
            prompts = prompts_of(engine, prefill) if prefill != "rows" else step_prompts(engine, checkpoint, quantise)
            if isinstance(prompts, OwnMemory):
                memory.callback(prompts.free)
        backend: ScheduleBackend | LiveBackend
        if schedule.live:
            backend = LiveBackend(engine, prompts=prompts)
        elif schedule.rows == 1:
            backend = ScheduleBackend(engine, prompts=prompts)
        else:
            backend = RowsBackend(engine, prompts, steps)
        memory.pop_all()
    return backend
