"""Who takes part in a contest: the schedules that a command line asks for. Needs no GPU and no torch."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from amk.models.model import load_model
from amk.planner.decode import choose_workers, plan
from amk.planner.formats import formats, layered
from amk.planner.settings import FAST, Settings
from amk.planner.tuned import tuned
from amk.schedule_ir.codec import load_schedule
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target

CHANGES = (
    "`warps=10; chunk_bytes=4096` -> the default plan with these fields, whose values are Python literals or quotients "
    "of numbers; an empty one is the default plan. Or @FILE, a schedule."
)


def settings_of(changes: str, fast: Settings) -> Settings:
    """The settings of a contestant. fast: those of the default plan. ValueError for a field that is none and for a
    value that is no literal.
    """
    values: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in changes.split(";"))):
        name, _, text = part.partition("=")
        above, quotient, below = text.partition("/")
        try:
            value = ast.literal_eval(above.strip())
            values[name.strip()] = value / ast.literal_eval(below.strip()) if quotient else value
        except (SyntaxError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"'{part}' is not FIELD=VALUE") from error
    if unknown := values.keys() - {field.name for field in fields(Settings)}:
        raise ValueError(f"no setting is called {', '.join(sorted(unknown))}")
    return replace(fast, plan="custom", **values) if values else fast


def schedule_of(arguments: argparse.Namespace, changes: str) -> Schedule:
    """The plan with these changes, or the schedule of a file, `@schedule.json`."""
    if changes.startswith("@"):
        return load_schedule(Path(changes[1:]))[0]
    context = arguments.context or max(arguments.positions) + arguments.tokens
    model, target = load_model(arguments.model), load_target(arguments.gpu)
    wanted, settings = formats(arguments.dtype, arguments.lm_head), replace(FAST, batch=arguments.batch)
    workers = choose_workers(model, target, settings.batch)
    fast = tuned(settings, model, target, layered(model, wanted), workers, context)
    return plan(model, target, settings=settings_of(changes, fast), formats=wanted, max_context=context)


def parse(argv: Sequence[str], description: str | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m amk.bench.contest", description=description)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--lm-head", help="format of lm_head (default: the same)")
    parser.add_argument("--batch", type=int, default=1, help="sequences decoded together (default: 1)")
    parser.add_argument("--positions", type=lambda t: [int(p) for p in t.split(",")], default=[128])
    parser.add_argument("--context", type=int, help="default: what the positions need")
    parser.add_argument("--steps", type=int, default=20, help="launches of each (default: 20)")
    parser.add_argument("--tokens", type=int, default=4, help="per launch (default: 4)")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--record", type=Path, help="write the results to this JSON file")
    parser.add_argument("--base", default="", help="changes of the contestant that the others are compared with")
    parser.add_argument("changes", nargs="+", help=CHANGES)
    arguments = parser.parse_args(argv)
    for changes in (arguments.base, *arguments.changes):
        try:
            _ = changes.startswith("@") or settings_of(changes, FAST)
        except ValueError as error:
            parser.error(str(error))
    return arguments
