"""`amk generate`: text from a model, streamed as it is chosen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from amk.commands.judging import QUANTISERS
from amk.commands.planning import add_format_choice, chosen_formats, positive
from amk.commands.sampling import add_sampling_arguments, sampling_of
from amk.engine.admission import admit
from amk.engine.checkpoint import Checkpoint, open_checkpoint
from amk.engine.generation_config import unheeded
from amk.engine.load import DeviceName, Progress, load, plan_for_cpu, rounding
from amk.engine.locate import find_checkpoint
from amk.engine.session import Session, check_prompt
from amk.engine.tokenizer import Tokenizer, open_tokenizer
from amk.planner.decode import plan
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where
from amk.schedule_ir.codec import load_schedule
from amk.schedule_ir.sampling import Mode, require
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.schedule_ir.target import load_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a known model, a directory with safetensors or a GGUF file")
    parser.add_argument(
        "--prompt", action="append", help="what the user says; - reads it from standard input; several: one batch"
    )
    parser.add_argument("--prompts", metavar="FILE", help="one prompt a line, decoded together as one batch")
    parser.add_argument("--plain", action="store_true", help="continue the prompt as text, without the chat template")
    parser.add_argument("--max-tokens", type=positive, default=128, help="stop after so many tokens (default: 128)")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="cpu is the interpreter (default: cuda where there is a GPU)"
    )
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
    path = find_checkpoint(arguments.model)
    checkpoint = open_checkpoint(path)
    tokenizer = open_tokenizer(path, checkpoint.spec.vocab)
    prompts = [_tokens(text, arguments.plain, tokenizer) for text in texts(arguments)]
    device: DeviceName = arguments.device or ("cuda" if _has_gpu() else "cpu")
    schedule = _schedule(arguments, checkpoint, device, prompts, sampling.mode)
    require(mode_of(schedule), sampling)
    arguments.findings.tell((*unheeded(path), *rounding(schedule, checkpoint)))
    admit(schedule)
    for prompt in prompts:
        check_prompt(schedule, prompt)
    with _progress() as progress:
        session = load(schedule, checkpoint, device, progress, QUANTISERS[arguments.quantiser])
    try:
        if len(prompts) == 1:
            stream = tokenizer.stream()
            for token in session.generate(prompts[0], arguments.max_tokens, checkpoint.spec.eos, sampling):
                print(stream.push(token), end="", flush=True)
            print(stream.finish())
        else:
            _print_batch(session, prompts, arguments.max_tokens, checkpoint.spec.eos, tokenizer)
    finally:
        session.engine.free()
    return Exit.SAFE


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


def _tokens(text: str, plain: bool, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text) if plain else tokenizer.encode_chat([{"role": "user", "content": text}])


def _schedule(
    arguments: argparse.Namespace, checkpoint: Checkpoint, device: DeviceName, prompts: list[list[int]], mode: Mode
) -> Schedule:
    """The given schedule, or a plan for that many prompts with room for the longest and its answer."""
    if arguments.schedule is not None:
        return load_schedule(Path(arguments.schedule))[0]
    model, forms = checkpoint.spec, chosen_formats(arguments)
    wanted = arguments.max_context or min(max(map(len, prompts)) + arguments.max_tokens, model.max_context)
    if device == "cpu" and arguments.gpu is None:
        return plan_for_cpu(model, wanted, mode, forms, arguments.kv_dtype, len(prompts))
    if arguments.gpu is None:
        raise AmkError(Diagnostic("AMK010", "which GPU to plan for is not known", help="pass --gpu or --schedule"))
    settings = replace(PRESETS["fast"], sampling=mode, kv_dtype=arguments.kv_dtype, batch=len(prompts))
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
