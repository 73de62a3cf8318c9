"""What `generate`, `chat` and `serve` share on the command line: the model, where it runs, how tokens are chosen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

from amk.api.card import interpreted, usable_card
from amk.api.devices import Device, Planned, chosen
from amk.api.loading import Files, load
from amk.commands.format_arguments import QUANTISER_NAMES, add_format_choice, positive
from amk.engine.generation.generation_config import unheeded
from amk.engine.generation.language_model import LanguageModel
from amk.engine.generation.speculation import GUESSES, Method
from amk.prefill.reader import FROM_TOKENS, Prefill
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.sampling import Mode

if TYPE_CHECKING:  # proofs and plans are imported where a schedule runs: the device cpu needs neither
    from amk.engine.load import Progress
    from amk.planner.formats import Formats, Layered
    from amk.weights.quantised import Quantiser

DEVICES = get_args(Device)
ANY_CHOICE: Mode = "top-k-top-p"
"""A schedule of this mode can draw whatever is asked for."""
GUESSING = ("draft_tokens", "draft_steps", "draft_branches")
FORMATS = ("dtype", "lm_head_dtype", "max_kl", "layer_parts", "text")
PLANNING = (*FORMATS, "kv_dtype", "max_context", "batch")
"""Options that a schedule which is there says itself."""
DEFAULTS = {"kv_dtype": "bf16", "batch": 1}
"""Of options that are None where nobody asks for them, the others."""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        help="a known model, a directory with safetensors, a GGUF file, or a hub's owner/name",
    )
    parser.add_argument(
        "--device", choices=DEVICES,
        help="cuda: a schedule on the GPU; cpu: in float32 with the weights as stored; interpreter: the schedule in "
        "numpy; emulator: its compiled code on the CPU (default: cuda where there is a GPU; else cpu, or interpreter "
        "with --gpu or --schedule)",
    )  # fmt: skip
    parser.add_argument("--schedule", metavar="FILE", help="run this schedule instead of planning one")
    parser.add_argument("--gpu", help="plan for this target (default: this machine's)")
    add_format_choice(parser)
    parser.add_argument(
        "--quantiser", choices=QUANTISER_NAMES,
        help="search takes longer for 4 bits (default: search)",
    )  # fmt: skip
    add_speculation(parser)
    parser.add_argument("--max-context", type=positive, help="cache positions of the plan")
    parser.add_argument(
        "--prefill", choices=get_args(Prefill),
        help="what reads prompts on the GPU. torch: its matrix products; rows: a schedule of several rows a "
        "step; kernel: the schedule, token by token; auto: "
        f"torch where it is installed, for {FROM_TOKENS} tokens and more (default: auto)",
    )  # fmt: skip


def add_texts(parser: argparse.ArgumentParser) -> None:
    """`--batch N`, for commands that compute several texts at once."""
    parser.add_argument(
        "--batch", type=positive, default=1, metavar="N",
        help="texts that are computed at once, 1 to 16, each joins and leaves by itself (default: 1)",
    )  # fmt: skip


def add_speculation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--speculate", choices=get_args(Method),
        help="guess tokens and verify several in one pass; the text stays the same. lookup: what followed in the text "
        "when its last tokens came before; draft: what a smaller model says",
    )  # fmt: skip
    parser.add_argument(
        "--draft", metavar="MODEL", help="the smaller model, with the same tokens, on the same device; as --model"
    )
    parser.add_argument("--draft-tokens", type=positive, metavar="N", help=f"most guesses a pass (default: {GUESSES})")
    parser.add_argument(
        "--draft-steps", type=positive, metavar="N",
        help="passes of a launch of the schedule, with --speculate lookup; guesses are then accepted where it runs "
        "(default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--draft-branches", type=positive, metavar="N",
        help="ways in which --speculate lookup guesses, all of which a pass verifies (default: 1)",
    )  # fmt: skip


def choose_device(arguments: argparse.Namespace) -> Device:
    """Where to run, which is told if nobody asked; `arguments.gpu` becomes this machine's target where that is planned.

    AMK005 for a schedule or a format of weights on the device cpu, which has neither, and for what nothing would heed.
    """
    scheduled = arguments.schedule is not None or arguments.gpu is not None
    formats_asked = any(_is_there(arguments, name) for name in (*FORMATS, "kv_dtype"))
    device: Device | None = arguments.device
    if device is None and scheduled:
        device = "cuda" if usable_card() is not None else "interpreter"
        if device == "interpreter":
            arguments.findings.tell((interpreted(),))
    elif device is None and formats_asked and usable_card() is None:
        device = "cpu"
    elif device is None:
        device, arguments.gpu, notes = chosen(None, False)
        arguments.findings.tell(notes)
    if device == "cpu" and (scheduled or formats_asked):
        message = "the device cpu computes with the weights as they are stored, without a schedule or a GPU to plan for"
        raise AmkError(Diagnostic("AMK005", message, help="pass --device interpreter, or leave the other options out"))
    _refuse_unheeded(arguments, device)
    return device


def _is_there(arguments: argparse.Namespace, name: str) -> bool:
    return getattr(arguments, name, None) not in (None, DEFAULTS.get(name))


def _refuse_unheeded(arguments: argparse.Namespace, device: Device) -> None:
    """AMK005 for an option that nothing would heed."""
    drafted, scheduled = arguments.draft is not None, arguments.schedule is not None
    guesses = drafted or arguments.speculate is not None
    reasons = dict.fromkeys(() if guesses else GUESSING, "is for --speculate: no tokens are guessed")
    own = PLANNING if drafted else (*PLANNING, "gpu")
    reasons |= dict.fromkeys(own if scheduled else (), "is for plans: --schedule says itself what it was planned for")
    if device == "cpu":
        reasons["quantiser"] = "makes codes for a schedule: the device cpu has none"
    if device != "cuda":
        reasons["prefill"] = f"is for the device cuda: the device {device} reads prompts in one way"
    for name, reason in reasons.items():
        if _is_there(arguments, name):
            message = f"--{name.replace('_', '-')} {reason}"
            raise AmkError(Diagnostic("AMK005", message, help="leave it out"))


def _guessing(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `load` that say how tokens are guessed."""
    counts = {name: getattr(arguments, name) for name in GUESSING if _is_there(arguments, name)}
    return {"speculate": arguments.speculate, "draft": arguments.draft, **counts}


def opened(
    arguments: argparse.Namespace, device: Device, files: Files, longest: int, sampling: Mode | None, batch: int = 1
) -> LanguageModel:
    """The model on its device, with room for `batch` texts of `longest` tokens; what loading has to say is told.

    sampling: what a plan can draw; None where requests choose, and the checkpoint for those that do not.
    """
    if device == "cpu":
        model = load(files, device=device, max_context=arguments.max_context, batch=batch, **_guessing(arguments))
    else:
        with packing_bar() as progress:
            model = load(
                files, arguments.gpu, device=device, formats=asked_formats(arguments), kv_dtype=arguments.kv_dtype,
                max_context=positions(arguments, files, longest), sampling=sampling or ANY_CHOICE,
                schedule=arguments.schedule, progress=progress, quantise=quantiser(arguments),
                prefill=prefill(arguments), batch=batch, **_guessing(arguments),
            )  # fmt: skip
    if notes := model.notes if sampling is not None else _notes_of_server(model.notes, files):
        arguments.findings.tell(notes)
    return model


def _notes_of_server(notes: Sequence[Diagnostic], files: Files) -> list[Diagnostic]:
    """Without what holds for greedy texts alone."""
    greedy = unheeded(files.path)
    return [*unheeded(files.path, suggestions=True), *(note for note in notes if note not in greedy)]


def positions(arguments: argparse.Namespace, files: Files, longest: int) -> int:
    """Of the cache that is planned."""
    return int(arguments.max_context or min(longest, files.checkpoint.spec.max_context))


def asked_formats(arguments: argparse.Namespace) -> Formats | Layered:
    from amk.commands.planning import chosen_formats

    return chosen_formats(arguments)


def quantiser(arguments: argparse.Namespace) -> Quantiser:
    from amk.commands.judging import QUANTISERS

    return QUANTISERS[arguments.quantiser or "search"]


def prefill(arguments: argparse.Namespace) -> Prefill:
    """What reads prompts on the device cuda."""
    asked: Prefill | None = arguments.prefill
    return asked or "auto"


def plan_wanted(arguments: argparse.Namespace, files: Files, longest: int, sampling: Mode, batch: int) -> Planned:
    """A plan for `batch` texts of `longest` tokens."""
    return Planned(asked_formats(arguments), arguments.kv_dtype, positions(arguments, files, longest), sampling, batch)


@contextmanager
def packing_bar() -> Iterator[Progress | None]:
    """A bar on a terminal's standard error, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("packing weights"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("packing weights")
        yield lambda count, total: bar.update(task, completed=count, total=total)
