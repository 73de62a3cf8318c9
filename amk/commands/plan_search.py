"""`amk plan --search`: settings that the planner's search finds, or found when it was last asked the same."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from amk.commands.format_arguments import natural
from amk.commands.planning import add_constants_choice, chosen_formats
from amk.models.model import load_model
from amk.planner.clock import Clock
from amk.planner.search import Problem, Search, search
from amk.planner.search_cache import Decisions, cache_key, cached, decisions_of, keep
from amk.planner.settings import FAST, Settings
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import Constants, given_constants
from amk.simulator.kinds import known_error
from amk.targets.target import load_target

DEFAULT_EXPANSIONS = 100
POSITIONS = (128, 2047)
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--search", action="store_true", help="search for a faster plan on the simulator")
    parser.add_argument(
        "--expansions", type=int, metavar="N", help=f"plans to simulate (default: {DEFAULT_EXPANSIONS})"
    )
    parser.add_argument("--budget", type=seconds, metavar="TIME", help="stop at the last whole round, e.g. 60s or 5m")
    parser.add_argument("--seed", type=natural, help="seed of the search (default: 0)")
    parser.add_argument("--no-cache", action="store_true", help="search even if the same search was made before")
    add_constants_choice(parser)


def seconds(text: str) -> float:
    """`90`, `60s`, `5m`, `1h`."""
    match = _BUDGET.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no time; give for example 60s or 5m")
    return float(match[1]) * _SECONDS[match[2]]


def problem_of(arguments: argparse.Namespace) -> Problem:
    target = load_target(arguments.gpu)
    return Problem(
        load_model(arguments.model), target, chosen_formats(arguments), arguments.max_context, POSITIONS,
        given_constants(arguments.constants, target),
    )  # fmt: skip


def asked_settings(arguments: argparse.Namespace, plan: Settings) -> Settings:
    """The plan with what the arguments say about a step."""
    return replace(
        plan, sampling=arguments.sampling, batch=arguments.batch, live=arguments.live, rows=arguments.rows,
        accepts=arguments.accepts, tree=arguments.tree, headless=arguments.headless,
    )  # fmt: skip


def start_of(arguments: argparse.Namespace) -> Settings:
    """Where the search begins: what it does not choose is as asked for."""
    return replace(asked_settings(arguments, FAST), kv_dtype=arguments.kv_dtype)


def no_search(arguments: argparse.Namespace) -> None:
    """AMK005 for an option of a search, where none is asked for."""
    for name in ("expansions", "budget", "seed", "no_cache", "constants"):
        value = getattr(arguments, name)
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            raise AmkError(Diagnostic("AMK005", f"{option} is for --search, which simulates", help="add --search"))


def searched_settings(arguments: argparse.Namespace) -> Settings:
    """The settings that the search finds, or found when it was last asked the same; says so on stderr."""
    if arguments.plan is not None:
        message = f"--plan {arguments.plan}: the search begins with every plan"
        raise AmkError(Diagnostic("AMK005", message, help="leave it out"))
    if arguments.expansions is not None and arguments.expansions < 1:
        raise AmkError(Diagnostic("AMK005", f"--expansions {arguments.expansions}: at least 1 is needed"))
    problem = problem_of(arguments)
    limit = arguments.expansions
    if limit is None and arguments.budget is None:
        limit = DEFAULT_EXPANSIONS
    start = start_of(arguments)
    seed = arguments.seed or 0
    asked = {"seed": seed, "expansions": limit, "budget": arguments.budget}
    key = cache_key(problem, asked, start)
    known = None if arguments.no_cache else cached(key)
    if known is None or schedule_hash(problem.schedule(known.settings(start))) != known.schedule:
        from amk.engine.admission.admission import (
            why_not_admitted,  # needs the compiler, which a plan without a search does not
        )

        with Bar(limit, arguments.budget) as bar, Clock(problem) as times:
            best = search(
                problem, start=start, seed=seed, expansions=limit, budget_s=arguments.budget,
                progress=bar.show, why_not=why_not_admitted, times=times,
            )  # fmt: skip
        known = decisions_of(problem, best, seed)
        keep(key, known)
    _say(known, problem.schedule(known.settings(start)), problem.constants)
    return known.settings(start)


def _say(decisions: Decisions, schedule: Schedule, constants: Constants | None) -> None:
    positions = [min(pos, schedule.kv.context - 1) for pos in decisions.positions]
    times = ", ".join(f"{ms:.4f} ms at {pos}" for ms, pos in zip(decisions.ms, positions, strict=True))
    default = ", ".join(f"{ms:.4f}" for ms in decisions.default_ms)
    changes = ", ".join(f"{k}={v}" for k, v in decisions.changes.items()) or "the default plan"
    print(f"simulated {times} (default plan {default}): {changes}", file=sys.stderr)
    error = known_error(schedule, positions[0], constants=constants)
    print(f"error of such predictions: {error}", file=sys.stderr)
    print(f"the same again: --expansions {decisions.expansions} --seed {decisions.seed}", file=sys.stderr)


class Bar:
    """A progress bar on a terminal's standard error; nothing elsewhere."""

    def __init__(self, expansions: int | None, budget: float | None) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._budget = budget if expansions is None else None
        self._task = self._progress.add_task("searching (simulated)", total=self._budget or expansions)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, search: Search) -> None:
        best = search.best
        text = f"{search.expansions} plans, best {best.ms[0]:.4f} ms (simulated)" if best else "no plan yet"
        elapsed = self._progress.tasks[0].elapsed or 0.0
        done = elapsed if self._budget is not None else search.expansions
        self._progress.update(self._task, completed=done, description=text)
