"""`amk generate`: text from a model, streamed as it is chosen."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from amk.api import Device, schedule_backend
from amk.commands.judging import QUANTISERS
from amk.commands.planning import add_format_choice, chosen_formats, positive
from amk.commands.sampling import add_sampling_arguments, sampling_of
from amk.engine.backend import ForwardBackend
from amk.engine.checkpoint import Checkpoint, open_checkpoint
from amk.engine.forward import ForwardPass
from amk.engine.generation_config import unheeded
from amk.engine.language_model import LanguageModel
from amk.engine.locate import find_checkpoint
from amk.engine.tokenizer import Tokenizer, open_tokenizer
from amk.planner.decode import plan
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where
from amk.schedule_ir.codec import load_schedule
from amk.schedule_ir.sampling import Mode, require
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.schedule_ir.target import load_target

if TYPE_CHECKING:  # proofs and plans are imported where a schedule runs: the device cpu needs neither
    from amk.engine.load import DeviceName, Progress
    from amk.engine.session import Session

DEVICES = get_args(Device)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--prompt", action="append", help="what the user says; - reads it from standard input; several: one batch"
    )
    parser.add_argument("--prompts", metavar="FILE", help="one prompt a line, decoded together as one batch")
    parser.add_argument("--plain", action="store_true", help="continue the prompt as text, without the chat template")
    parser.add_argument("--system", metavar="TEXT", help="the system message before the prompt")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the answer before this text")
    parser.add_argument("--logprobs", type=int, metavar="N", help="with --json: N alternatives of every token, 0 to 20")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each answer instead of text")
    parser.add_argument("--max-tokens", type=positive, default=128, help="stop after so many tokens (default: 128)")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """What `generate` and `chat` share: the model, where it runs, how tokens are chosen."""
    parser.add_argument(
        "--model",
        required=True,
        help="a known model, a directory with safetensors, a GGUF file, or a hub's owner/name",
    )
    parser.add_argument(
        "--device", choices=DEVICES,
        help="cpu: in float32 with the weights as stored; interpreter: the schedule in numpy; cuda: the schedule on "
        "the GPU (default: cpu; with --gpu or --schedule cuda, or interpreter where there is no GPU)",
    )  # fmt: skip
    parser.add_argument("--schedule", metavar="FILE", help="run this schedule instead of planning one")
    parser.add_argument("--gpu", help="plan for this target; needed with --device cuda unless --schedule is given")
    add_format_choice(parser)
    parser.add_argument(
        "--quantiser",
        choices=tuple(QUANTISERS),
        default="search",
        help="search takes longer for 4 bits (default: search)",
    )
    add_sampling_arguments(parser)
    parser.add_argument("--max-context", type=positive, help="cache positions of the plan")


def run(arguments: argparse.Namespace) -> int:
    sampling = sampling_of(arguments)
    device = device_of(arguments)
    path = find_checkpoint(arguments.model)
    checkpoint = open_checkpoint(path)
    tokenizer = open_tokenizer(path, checkpoint.spec.vocab)
    prompts = [_tokens(text, arguments, tokenizer) for text in texts(arguments)]
    if len(prompts) > 1 and device != "cpu":
        _run_batch(arguments, device, path, checkpoint, tokenizer, prompts)
        return Exit.SAFE
    longest = max(map(len, prompts)) + arguments.max_tokens
    with opened(arguments, device, path, checkpoint, tokenizer, longest) as model:
        for number, prompt in enumerate(prompts, 1):
            options = dataclasses.asdict(sampling) | {"stop": arguments.stop, "max_tokens": arguments.max_tokens}
            stream = model.stream(prompt, **options, logprobs=arguments.logprobs)
            if arguments.json:
                print(json.dumps(dataclasses.asdict(stream.run()), ensure_ascii=False), flush=True)
                continue
            print(f"[{number}] " if len(prompts) > 1 else "", end="")
            for piece in stream:
                print(piece.text, end="", flush=True)
            print()
    return Exit.SAFE


def device_of(arguments: argparse.Namespace) -> Device:
    """Where to run; AMK005 for a schedule or a format of weights on the device cpu, which has neither."""
    scheduled = arguments.schedule is not None or arguments.gpu is not None
    device: Device = arguments.device or ("cpu" if not scheduled else "cuda" if _has_gpu() else "interpreter")
    formats_asked = arguments.dtype is not None or arguments.lm_head_dtype is not None or arguments.kv_dtype != "bf16"
    if device == "cpu" and (scheduled or formats_asked):
        message = "the device cpu computes with the weights as they are stored, without a schedule or a GPU to plan for"
        raise AmkError(Diagnostic("AMK005", message, help="pass --device interpreter, or leave the other options out"))
    return device


def opened(
    arguments: argparse.Namespace,
    device: Device,
    path: Path,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    longest: int,
) -> LanguageModel:
    """The model on its device, with room for `longest` tokens; what loading has to say is told."""
    notes = unheeded(path)
    if device == "cpu":
        arguments.findings.tell(notes)
        context = arguments.max_context or checkpoint.spec.max_context
        return LanguageModel(checkpoint.spec, tokenizer, ForwardBackend(ForwardPass(checkpoint, context)), notes)
    from amk.engine.load import rounding

    mode = sampling_of(arguments).mode
    schedule = _schedule(arguments, checkpoint, device, longest, 1, mode)
    require(mode_of(schedule), sampling_of(arguments))
    arguments.findings.tell(notes := (*notes, *rounding(schedule, checkpoint)))
    with _progress() as progress:
        backend = schedule_backend(schedule, checkpoint, device, progress, QUANTISERS[arguments.quantiser])
    return LanguageModel(checkpoint.spec, tokenizer, backend, notes)


def _run_batch(
    arguments: argparse.Namespace,
    device: Device,
    path: Path,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
) -> None:
    """Several prompts on a schedule of as many sequences."""
    from amk.engine.admission import admit
    from amk.engine.load import load, rounding
    from amk.engine.session import check_prompt

    sampling = sampling_of(arguments)
    if arguments.stop or arguments.logprobs is not None or arguments.json:
        raise AmkError(Diagnostic("AMK005", "--stop, --logprobs and --json are for one prompt, or for --device cpu"))
    longest = max(map(len, prompts)) + arguments.max_tokens
    schedule = _schedule(arguments, checkpoint, device, longest, len(prompts), sampling.mode)
    require(mode_of(schedule), sampling)
    arguments.findings.tell((*unheeded(path), *rounding(schedule, checkpoint)))
    admit(schedule)
    for prompt in prompts:
        check_prompt(schedule, prompt)
    with _progress() as progress:
        on: DeviceName = "cuda" if device == "cuda" else "cpu"
        session = load(schedule, checkpoint, on, progress, QUANTISERS[arguments.quantiser])
    try:
        _print_batch(session, prompts, arguments.max_tokens, checkpoint.spec.eos, tokenizer)
    finally:
        session.engine.free()


def _print_batch(
    session: Session, prompts: list[list[int]], max_tokens: int, eos: Sequence[int], tokenizer: Tokenizer
) -> None:
    """The texts one after the other, each under its number: their tokens come interleaved."""
    streams = [tokenizer.stream() for _ in prompts]
    parts: list[list[str]] = [[] for _ in prompts]
    for sequence, token in session.generate_batch(prompts, max_tokens, eos):
        parts[sequence].append(streams[sequence].push(token))
    for number, (part, stream) in enumerate(zip(parts, streams, strict=True), 1):
        print(f"[{number}] {''.join(part)}{stream.finish()}")


def texts(arguments: argparse.Namespace) -> list[str]:
    """What `--prompt` and the lines of `--prompts` say; AMK005 unless there is at least one."""
    found = [sys.stdin.read() if text == "-" else text for text in arguments.prompt or ()]
    if arguments.prompts is not None:
        try:
            found += Path(arguments.prompts).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            where = Where(file=str(arguments.prompts))
            raise AmkError(Diagnostic("AMK001", f"cannot read: {error}", where=where)) from error
    if not found:
        raise AmkError(Diagnostic("AMK005", "give --prompt, or --prompts with a file that has a line"))
    return found


def _tokens(text: str, arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[int]:
    if arguments.plain:
        return tokenizer.encode(text)
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    return tokenizer.encode_chat([*system, {"role": "user", "content": text}])


def _schedule(
    arguments: argparse.Namespace, checkpoint: Checkpoint, device: Device, longest: int, batch: int, mode: Mode
) -> Schedule:
    """The given schedule, or a plan for that many texts of `longest` tokens."""
    from amk.engine.load import plan_for_cpu

    if arguments.schedule is not None:
        return load_schedule(Path(arguments.schedule))[0]
    model, forms = checkpoint.spec, chosen_formats(arguments)
    wanted = arguments.max_context or min(longest, model.max_context)
    if device == "interpreter" and arguments.gpu is None:
        return plan_for_cpu(model, wanted, mode, forms, arguments.kv_dtype, batch)
    if arguments.gpu is None:
        raise AmkError(Diagnostic("AMK010", "which GPU to plan for is not known", help="pass --gpu or --schedule"))
    settings = replace(PRESETS["fast"], sampling=mode, kv_dtype=arguments.kv_dtype, batch=batch)
    return plan(model, load_target(arguments.gpu), settings=settings, wanted=forms, max_context=wanted)


def _has_gpu() -> bool:
    """A driver that shows at least one usable GPU."""
    from amk.lowering.launch import Device

    try:
        Device.open().close()
    except AmkError:
        return False
    return True


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on a terminal's standard error, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn  # fmt: skip
    from rich.progress import Progress as Bar

    columns = (TextColumn("packing weights"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("packing weights")
        yield lambda done, total: bar.update(task, completed=done, total=total)
