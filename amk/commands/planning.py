"""From `FILE` or `--model --gpu --plan ...` on a command line to a schedule."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.codec import load_schedule
from amk.schedule_ir.model import load_model
from amk.schedule_ir.sampling import Mode
from amk.schedule_ir.schedule import Schedule
from amk.schedule_ir.target import load_target
from amk.schedule_ir.weight_format import FORMATS


def add_plan_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """`--model`, `--gpu`, `--dtype`, `--lm-head-dtype`, `--max-context`; names ignore case."""
    parser.add_argument("--model", required=required, help="a known model, a directory, a config.json or a GGUF file")
    parser.add_argument("--gpu", required=required, help="a known target; `amk targets` lists them")
    parser.add_argument("--dtype", choices=FORMATS, default="bf16", help="format of the weights (default: bf16)")
    parser.add_argument("--lm-head-dtype", choices=FORMATS, help="format of lm_head (default: that of --dtype)")
    parser.add_argument("--max-context", type=positive, help="cache positions (default: what the model has and fits)")


def positive(text: str) -> int:
    """An argument that is an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def planned(
    arguments: argparse.Namespace, preset: str, max_context: int | None = None, sampling: Mode = "greedy"
) -> Schedule:
    """The plan that the arguments name; `preset` is a key of PRESETS."""
    return plan(
        load_model(arguments.model),
        load_target(arguments.gpu),
        settings=replace(PRESETS[preset], sampling=sampling),
        wanted=formats(arguments.dtype, arguments.lm_head_dtype),
        max_context=max_context or arguments.max_context,
    )


def given_or_planned(arguments: argparse.Namespace) -> Schedule:
    """The schedule in the file `arguments.schedule`, or the plan of `--model` and `--gpu`; AMK005 otherwise."""
    named = arguments.model is not None or arguments.gpu is not None
    if arguments.schedule is not None and not named:
        return load_schedule(Path(arguments.schedule))[0]
    if arguments.schedule is None and arguments.model is not None and arguments.gpu is not None:
        return planned(arguments, arguments.plan)
    raise AmkError(Diagnostic("AMK005", "give either a schedule file, or both --model and --gpu"))
