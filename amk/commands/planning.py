"""From `FILE` or `--model --gpu --plan ...` on a command line to a schedule."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from amk.commands.format_arguments import AUTO, add_format_choice, positive
from amk.commands.schedule_file import read_schedule
from amk.models.matrices import MatrixName
from amk.models.model import load_model
from amk.models.packed_config import layout_of_directory
from amk.planner.decode import plan
from amk.planner.formats import Formats, Layered, formats, runs_of
from amk.planner.settings import PRESETS, Settings
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName


def add_plan_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """`--model`, `--gpu`, `--dtype`, `--lm-head-dtype`, `--max-context`; names ignore case."""
    parser.add_argument("--model", required=required, help="a known model, a directory, a config.json or a GGUF file")
    parser.add_argument("--gpu", required=required, help="a known target; `amk targets` lists them")
    add_format_choice(parser)
    parser.add_argument("--max-context", type=positive, help="cache positions (default: what the model has and fits)")


def add_constants_choice(parser: argparse.ArgumentParser) -> None:
    """`--constants FILE`, for commands that simulate."""
    parser.add_argument(
        "--constants", type=Path, metavar="FILE",
        help="the simulator's constants of the GPU, as `amk calibrate --learn` or `amk simulate --calibrate` writes",
    )  # fmt: skip


def add_batch_choice(parser: argparse.ArgumentParser) -> None:
    """`--batch N`, for commands that make one plan."""
    parser.add_argument(
        "--batch",
        type=positive,
        default=1,
        metavar="N",
        help="sequences decoded together, 1 to 64, live ones to 16 (default: 1)",
    )


def add_rows_choice(parser: argparse.ArgumentParser) -> None:
    """`--rows N`, for commands that make one plan."""
    parser.add_argument(
        "--rows", type=positive, default=1, metavar="N",
        help="consecutive tokens of a sequence that a step reads, 1 to 64 (default: 1)",
    )  # fmt: skip


def add_tree_choice(parser: argparse.ArgumentParser) -> None:
    """`--tree`, for commands that make one plan."""
    parser.add_argument(
        "--tree", action="store_true",
        help="rows of a step are the nodes of a tree, each of which sees its ancestors alone",
    )  # fmt: skip


def add_accepts_choice(parser: argparse.ArgumentParser) -> None:
    """`--accepts`, for commands that make one plan."""
    parser.add_argument(
        "--accepts", action="store_true",
        help="rows behind a step's first are guesses, and the next step goes on behind the last right one",
    )  # fmt: skip


def add_headless_choice(parser: argparse.ArgumentParser) -> None:
    """`--headless`, for commands that make one plan."""
    parser.add_argument(
        "--headless", action="store_true",
        help="steps only read given rows into the cache: no output head, nothing is chosen",
    )  # fmt: skip


def add_live_choice(parser: argparse.ArgumentParser) -> None:
    """`--live`, for commands that make one plan."""
    parser.add_argument(
        "--live", action="store_true", help="every sequence of the batch has a position of its own, comes and goes"
    )


def chosen_formats(arguments: argparse.Namespace) -> Formats | Layered:
    """The format of every matrix: what was asked for, else how a directory of weights stores its layers."""
    if arguments.dtype == AUTO:
        return _measured_formats(arguments)
    if any(each is not None for each in (arguments.max_kl, arguments.text, arguments.layer_parts)):
        message = "--max-kl, --text and --layer-parts are for --dtype auto, which measures"
        raise AmkError(Diagnostic("AMK005", message))
    if arguments.dtype is None and (layout := layout_of_directory(Path(arguments.model))) is not None:
        return formats(layout.form, arguments.lm_head_dtype or "bf16")
    return formats(arguments.dtype or "bf16", arguments.lm_head_dtype)


def _measured_formats(arguments: argparse.Namespace) -> Formats | Layered:
    """The fewest bytes whose KL stays below the bound, measured on the checkpoint."""
    if arguments.max_kl is None or not arguments.max_kl > 0 or arguments.text is None:
        message = "--dtype auto needs --max-kl, a positive number of nats, and --text, what the KL is measured on"
        raise AmkError(Diagnostic("AMK005", message))
    # Imported here: plans without a checkpoint need none of it.
    from amk.commands.judging import judge_of
    from amk.quantize.choose import PARTS, choose

    judge = judge_of(arguments.model, arguments.text)
    parts = arguments.layer_parts or PARTS
    choice = choose(judge, arguments.max_kl, lambda line: print(line, file=sys.stderr), parts)
    override: dict[MatrixName, FormatName] = {"lm_head": arguments.lm_head_dtype} if arguments.lm_head_dtype else {}
    runs = runs_of([forms | override for forms in choice.forms])
    return runs[0][1] if len(runs) == 1 else runs


def planned(arguments: argparse.Namespace, settings: Settings, max_context: int | None = None) -> Schedule:
    """The plan that the arguments name, made with `settings`."""
    return plan(
        load_model(arguments.model),
        load_target(arguments.gpu),
        settings=replace(settings, kv_dtype=arguments.kv_dtype),
        formats=chosen_formats(arguments),
        max_context=max_context or arguments.max_context,
    )


def given_or_planned(arguments: argparse.Namespace) -> Schedule:
    """The schedule in the file `arguments.schedule`, or the plan of `--model` and `--gpu`; AMK005 otherwise."""
    named = arguments.model is not None or arguments.gpu is not None
    if arguments.schedule is not None and not named:
        return read_schedule(Path(arguments.schedule))[0]
    if arguments.schedule is None and arguments.model is not None and arguments.gpu is not None:
        return planned(arguments, PRESETS[arguments.plan])
    raise AmkError(Diagnostic("AMK005", "give either a schedule file, or both --model and --gpu"))
